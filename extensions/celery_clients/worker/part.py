"""What a worker does for stock Celery clients: the door, their messages among jobs, and the remote commands for their tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from penstock.broker.records import Claim, NewJob
from penstock.broker.store.connection import is_cluster
from penstock.extensions.celery_clients import ops as celery_ops
from penstock.extensions.celery_clients.ops import Rejected
from penstock.extensions.celery_clients.worker import commands  # noqa: F401 - loaded for its commands
from penstock.extensions.celery_clients.worker.clients import CLIENTS_NOT_SERVED, CeleryDoor
from penstock.extensions.celery_clients.worker.messages import job_from
from penstock.job import job_in, new_serial
from penstock.model_spec import ModelInfo, ModelSpec
from penstock.workers.fleet.parts import WorkerHost, WorkerPart

if TYPE_CHECKING:
    from penstock.broker.store.sync import RedisStore

log = structlog.get_logger(__name__)
FOREIGN_REJECTED = "foreign_rejected"
_NO_LIMIT = 1_000_000_000


def worker_part(host: WorkerHost) -> WorkerPart:
    if is_cluster(host.settings.job_store_url):
        log.info(CLIENTS_NOT_SERVED, reason="the store is a cluster, which Celery cannot use: submit over HTTP")
        return WorkerPart(read_messages=read_messages)
    door = CeleryDoor(host.open_store("door"), host.blobs, lambda: sorted(host.queues()))
    return WorkerPart(threads=[door], read_messages=read_messages)


def read_messages(store: RedisStore, claim: Claim, queue: str, *, spec: ModelSpec, info: ModelInfo) -> None:
    """Turn the stock Celery messages that a claim found in the queue into jobs, and answer those that cannot become one.

    The messages already stood in the queue (D3), so no limit of its depth applies.
    """

    def may_send(list_name: str) -> bool:
        return store.run(celery_ops.may_send(list_name))

    read = [
        job_from(message, job_in(new_serial(), queue), spec=spec, info=info, now=claim.now, may_send=may_send)
        for message in claim.messages
    ]
    if rejected := [item for item in read if isinstance(item, Rejected)]:
        for item in rejected:
            log.warning(FOREIGN_REJECTED, model=spec.name, reason=item.reason)
        store.run_all([celery_ops.reject_foreign(queue, item) for item in rejected])
    if jobs := [item for item in read if isinstance(item, NewJob)]:
        store.submit(jobs, max_depth=_NO_LIMIT)
