"""Webhooks: events of jobs and runs, taken from the outbox and sent to the URLs of their owners."""
