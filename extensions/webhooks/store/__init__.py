"""The outbox in the store: events to deliver."""
