"""What Celery loads: the consumer step, the pool, the worker program. Nothing here knows how batches are made."""
