"""A Celery worker: claims batches, runs them on child processes, settles them. May import core, broker, handlers, client."""
