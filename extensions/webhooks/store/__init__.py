"""The outbox in the store: events that are to be delivered."""
