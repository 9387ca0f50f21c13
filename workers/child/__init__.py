"""What runs in the process of the model, and nothing else: no store, no queue, no credentials. Imports handlers and ipc."""
