"""The job store on Redis: one function is one transition. Knows Redis and Celery, not HTTP, not models. May import core only."""
