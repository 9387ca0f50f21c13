"""The worker's door for stock Celery clients: their messages read, their results written."""
