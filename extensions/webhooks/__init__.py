"""Webhooks: events of jobs and runs, kept in an outbox and delivered to callers' URLs."""
