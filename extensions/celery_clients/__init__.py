"""Jobs of stock Celery clients: their messages become jobs, and jobs' ends become their results."""

from penstock.extension import Extension

extension = Extension(
    "celery_clients",
    functions="penstock.extensions.celery_clients:functions",
    worker="penstock.extensions.celery_clients.worker.part:worker_part",
    store_users={"penstock-celery": "penstock.extensions.celery_clients.ops:CLIENT_RULES"},
)
