"""Jobs of stock Celery clients: their messages become jobs, and jobs' ends become their results."""
