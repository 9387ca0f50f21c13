"""The job store on Redis: one function is one transition. Knows Redis and Celery, not HTTP or models. Imports core only."""
