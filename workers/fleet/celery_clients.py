"""The door of stock Celery clients: takes their messages out of the queues that no claim reads, and answers what claims cannot.

A message lies in the store until it is a job or is answered: one that a killed worker had taken is handed out again 15 s later,
and a message that comes twice makes one job, because the task's id is the job's idempotency key.
"""

# D81: docs/design/store.md

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container
from json import dumps

import structlog
from kombu.utils import json as kombu_json

from penstock.broker.blobs.files import BlobStore, BlobsUnavailable
from penstock.broker.store import celery_ops
from penstock.broker.store.celery_ops import DOOR, Rejected
from penstock.broker.store.sync import RedisStore
from penstock.errors import NotFound, PenstockError, TooLarge
from penstock.job import Job, JobId, Payload
from penstock.workers.slot.celery_messages import DoorMessage, asked_by

log = structlog.get_logger(__name__)
CLIENTS_NOT_SERVED = "celery_clients_not_served"
MESSAGES_REJECTED = "celery_messages_rejected"
# How long a worker listens at the door before it looks at the other lists; a message to the door itself ends the wait.
_LISTEN_S = 0.25
_AT_ONCE_S = 0.001
_ANSWERS_AT_ONCE = 8
# A result beside JSON grows by a third on its way; Redis holds values up to 512 MB, and the client reads it at one go.
MAX_RESULT_BYTES = 64 * 1024 * 1024


class CeleryClients:
    """One round passes on the messages at the door and answers the tasks that are due; a thread repeats it.

    `models` are those that this worker serves; `revoked` the ids of tasks that were revoked while it ran.
    """

    def __init__(
        self, store: RedisStore, blobs: BlobStore, models: Callable[[], Collection[str]], *, revoked: Container[str]
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._models = models
        self._revoked = revoked
        self._known: Collection[str] = ()
        # A worker that stops takes no more messages, and answers on.
        self.draining = False

    def run_once(self, _: float) -> float:
        """Seconds until the next round. Raises `StoreUnavailable`."""
        if not self.draining:
            self._store.send(celery_ops.await_message(_LISTEN_S))
            self._pass_on(self._store.run(celery_ops.draw_door()))
            self._store.run_all([celery_ops.draw_model(model) for model in self._models()])
        self.answer_due()
        return _LISTEN_S if self.draining else _AT_ONCE_S

    def _pass_on(self, messages: list[bytes]) -> None:
        read = [self._unless_revoked(asked_by(message)) for message in messages]
        asked = [one for one in read if isinstance(one, DoorMessage)]
        if not {one.model for one in asked} <= set(self._known):
            self._known = {*self._models(), *(info.name for info in self._store.models())}
        known = [(one.model, one.message) for one in asked if one.model in self._known]
        if known:
            self._store.run(celery_ops.pass_messages(known))
        refused = [one if isinstance(one, Rejected) else self._unknown(one) for one in read if not self._is_known(one)]
        if refused:
            self._store.reject_foreign(DOOR, refused)
        for reason, count in Counter(one.reason for one in refused).items():
            log.warning(MESSAGES_REJECTED, reason=reason, count=count)

    def _is_known(self, read: DoorMessage | Rejected) -> bool:
        return isinstance(read, DoorMessage) and read.model in self._known

    def _unless_revoked(self, read: DoorMessage | Rejected) -> DoorMessage | Rejected:
        if read.celery_id not in self._revoked:
            return read
        return Rejected(read.message, read.celery_id, "revoked before it became a job", celery_ops.CANCELLED)

    def _unknown(self, asked: DoorMessage) -> Rejected:
        names = ", ".join(sorted(self._known)[:20])
        return Rejected(asked.message, asked.celery_id, f"there is no model {asked.model[:80]!r}; the models: {names}"[:300])

    def answer_due(self) -> None:
        """Write the results that Lua cannot: large ones, and bytes."""
        for job in self._store.run(celery_ops.due_answers(_ANSWERS_AT_ONCE)):
            try:
                self._answer(job)
            except BlobsUnavailable as away:
                # The store hands it out again.
                log.warning(CLIENTS_NOT_SERVED, job=str(job), error=away.message)

    def _answer(self, job: JobId) -> None:
        task = self._store.send(celery_ops.task_of(job)).decode()
        found = self._store.result(job)
        # A record that was collected meanwhile has no result for anybody.
        text = answer_text(task, *self._loaded(found)) if task and found else b""
        self._store.run(celery_ops.answer(job, task, text))

    def _loaded(self, found: tuple[Job, Payload | None]) -> tuple[Job, Payload | PenstockError]:
        job, output = found
        if output is None:
            return job, NotFound(f"job {job.id} ended as {job.state.value} without an output")
        try:
            data = self._blobs.get(output.blob) if output.blob else output.data
        except NotFound as error:
            return job, error
        if len(data) > MAX_RESULT_BYTES:
            return job, TooLarge(f"the output has {len(data)} bytes; read it at the gateway: GET /v1/jobs/{job.id}/result")
        return job, Payload(output.content_type, data)


def answer_text(task: str, job: Job, output: Payload | PenstockError) -> bytes:
    """An entry of Celery's result backend: the JSON as the model wrote it, everything else as bytes."""
    if isinstance(output, PenstockError):
        name = type(output).__name__
        error = {"exc_type": name, "exc_message": [f"{output.kind}: {output.message}"], "exc_module": "penstock.errors"}
        return _entry(task, "FAILURE", dumps(error).encode())
    is_json = output.content_type == "application/json"
    return _entry(task, "SUCCESS", output.data if is_json else _as_kombu(output.data))


def _as_kombu(data: bytes) -> bytes:
    text: str = kombu_json.dumps(data)  # type: ignore[no-untyped-call]
    return text.encode()


def _entry(task: str, status: str, result: bytes) -> bytes:
    tail = dumps({"traceback": None, "children": [], "task_id": task})[1:].encode()
    return b'{"status":"%b","result":%b,%b' % (status.encode(), result, tail)
