"""The door of stock Celery clients: takes messages from the queues that no claim reads, and answers tasks that Lua cannot.

A message stays in the store until it becomes a job or is answered. If the worker that took it is killed, it is handed out again
after 15 s. A message that comes twice makes one job, because the task's id is the job's idempotency key.
"""

# D81: docs/design/store.md

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Sequence
from json import dumps

import structlog
from celery.worker import state as worker_state
from kombu.utils import json as kombu_json

from penstock.broker.blobs.files import BlobStore, BlobsUnavailable
from penstock.broker.store.sync import RedisStore
from penstock.errors import NotFound, PenstockError, StoreUnavailable, TooLarge
from penstock.extensions.celery_clients import ops as celery_ops
from penstock.extensions.celery_clients.ops import DOOR, AnsweredTask, Rejected, Sent
from penstock.extensions.celery_clients.worker.follow_ups import after_failure, after_success
from penstock.extensions.celery_clients.worker.messages import DoorMessage, asked_by, chain_of
from penstock.job import Job, JobId, JobState, Payload, model_of
from penstock.workers.fleet.periodic_thread import PeriodicThread

log = structlog.get_logger(__name__)
CLIENTS_NOT_SERVED = "celery_clients_not_served"
MESSAGES_REJECTED = "celery_messages_rejected"
FOLLOW_UP_NOT_SENT = "celery_follow_up_not_sent"
_RETRY_S = 0.5
# How long a worker listens at the door before it looks at the other lists; a message to the door itself ends the wait.
_LISTEN_S = 0.25
_AT_ONCE_S = 0.001
_ANSWERS_AT_ONCE = 8
# A result beside JSON grows by a third on its way; Redis holds values up to 512 MB, and the client reads it at one go.
MAX_RESULT_BYTES = 64 * 1024 * 1024


class CeleryClients:
    """One round passes on the messages at the door and answers the tasks that are due; a thread repeats it.

    `queues` are those that this worker serves; `revoked` the ids of tasks that were revoked while it ran.
    """

    def __init__(
        self,
        store: RedisStore,
        blobs: BlobStore,
        queues: Callable[[], Collection[str]],
        *,
        revoked: Container[str],
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._queues = queues
        self._revoked = revoked
        self._known: Collection[str] = ()
        # A stopping worker takes no more messages but still answers tasks.
        self.draining = False
        # How long the next round waits for a message: almost no time if more answers may be due.
        self.listen_s = _LISTEN_S

    def run_once(self, _: float) -> float:
        """Seconds until the next round. Raises `StoreUnavailable`."""
        if not self.draining:
            self._store.send(celery_ops.await_message(self.listen_s))
            self._pass_on(self._store.run(celery_ops.draw_door()))
            self._store.run_all([celery_ops.draw_queue(queue) for queue in self._queues()])
        more = self.answer_due() == _ANSWERS_AT_ONCE
        self.listen_s = _AT_ONCE_S if more else _LISTEN_S
        return self.listen_s if self.draining else _AT_ONCE_S

    def _pass_on(self, messages: list[bytes]) -> None:
        read = [self._unless_revoked(asked_by(message)) for message in messages]
        asked = [one for one in read if isinstance(one, DoorMessage)]
        if not {one.model for one in asked} <= set(self._known):
            self._known = {*map(model_of, self._queues()), *(info.name for info in self._store.models())}
        known = [(one.model, one.message) for one in asked if self._is_known(one)]
        if known:
            self._store.run(celery_ops.pass_messages(known))
        refused = [one if isinstance(one, Rejected) else self._unknown(one) for one in read if not self._is_known(one)]
        if refused:
            self._store.run_all([celery_ops.reject_foreign(DOOR, one) for one in refused])
        for reason, count in Counter(one.reason for one in refused).items():
            log.warning(MESSAGES_REJECTED, reason=reason, count=count)

    def _is_known(self, read: DoorMessage | Rejected) -> bool:
        return isinstance(read, DoorMessage) and read.model in self._known

    def _unless_revoked(self, read: DoorMessage | Rejected) -> DoorMessage | Rejected:
        if read.celery_id not in self._revoked:
            return read
        chain = chain_of(read.message)
        return Rejected(read.message, read.celery_id, "revoked before it became a job", celery_ops.CANCELLED, chain)

    def _unknown(self, asked: DoorMessage) -> Rejected:
        names = ", ".join(sorted(self._known)[:20])
        why = f"there is no model {asked.model[:80]!r}; the models: {names}"[:300]
        return Rejected(asked.message, asked.celery_id, why, chain=chain_of(asked.message))

    def answer_due(self) -> int:
        """Write results that Lua cannot (large ones and bytes), and send what follows a job. Returns how many jobs were due."""
        due = self._store.run(celery_ops.due_answers(_ANSWERS_AT_ONCE))
        for job in due:
            try:
                self._answer(job)
            except BlobsUnavailable as away:
                # The store hands it out again.
                log.warning(CLIENTS_NOT_SERVED, job=str(job), error=away.message)
        return len(due)

    def _answer(self, job: JobId) -> None:
        task = self._store.send(celery_ops.task_of(job))
        ended = self._store.result(job)
        # A record that was collected meanwhile has no result any more.
        sent = self._sent(task, ended) if ended else []
        if refused := self._store.run(celery_ops.answer(job, sent)):
            # The store hands it out again, until the record is collected.
            log.warning(FOLLOW_UP_NOT_SENT, job=str(job), queue=refused)

    def _sent(self, task: AnsweredTask, ended: tuple[Job, Payload | None]) -> list[Sent]:
        """The answers to Celery's clients and the messages to Celery's workers at the end of a job."""
        now = self._store.now()
        if ended[0].state is not JobState.SUCCEEDED:
            # The command that ended the job has answered already.
            return [one.message for one in after_failure(task.follow_ups, now=now)]
        return answers(task, self._loaded(*ended), now=now)

    def _loaded(self, job: Job, output: Payload | None) -> Payload | PenstockError:
        if output is None:
            return NotFound(f"job {job.id} ended as {job.state.value} without an output")
        try:
            data = self._blobs.get(output.blob) if output.blob else output.data
        except NotFound as error:
            return error
        if len(data) > MAX_RESULT_BYTES:
            return TooLarge(f"the output has {len(data)} bytes; read it at the gateway: GET /v1/jobs/{job.id}/result")
        return Payload(output.content_type, data)


class CeleryDoor:
    """The thread in which a worker serves Celery's clients, over a connection of its own. `queues`: as in `CeleryClients`."""

    def __init__(self, store: RedisStore, blobs: BlobStore, queues: Callable[[], Collection[str]]) -> None:
        self._store = store
        self._clients = CeleryClients(self._store, blobs, queues, revoked=worker_state.revoked)
        self._thread = PeriodicThread("door", _RETRY_S, self._clients.run_once, failure_event=CLIENTS_NOT_SERVED)

    def start(self) -> None:
        self._thread.start()

    def drain(self) -> None:
        """Take no more messages, but go on answering."""
        self._clients.draining = True

    def stop(self) -> None:
        """Answer what is due, and end."""
        try:
            self._thread.stop()
            self._clients.answer_due()
        except StoreUnavailable as error:
            # Another worker answers, or this one after its restart.
            log.warning(CLIENTS_NOT_SERVED, error=str(error))
        self._store.close()


def answers(task: AnsweredTask, output: Payload | PenstockError, *, now: float) -> list[Sent]:
    """The answer to a task, and what follows it: JSON as the model wrote it, everything else as bytes."""
    if isinstance(output, PenstockError):
        return _failed(task, output, now)
    result = output.data if output.content_type == "application/json" else _as_kombu(output.data)
    following = after_success(task.follow_ups, result, now=now)
    if len(result) * len(following) > MAX_RESULT_BYTES:
        return _failed(task, TooLarge(f"{len(following)} tasks would each be sent {len(result)} bytes"), now)
    children = [[[one.id, None], None] for one in following]
    return [*(one.message for one in following), *_entries([task.own], "SUCCESS", result, children)]


def _failed(task: AnsweredTask, error: PenstockError, now: float) -> list[Sent]:
    """The tasks of its chain fail with it."""
    told = {
        "exc_type": type(error).__name__,
        "exc_message": [f"{error.kind}: {error.message}"],
        "exc_module": "penstock.errors",
    }
    sent = [one.message for one in after_failure(task.follow_ups, now=now)]
    return [*sent, *_entries([task.own, *task.chain], "FAILURE", dumps(told).encode())]


def _as_kombu(data: bytes) -> bytes:
    text: str = kombu_json.dumps(data)  # type: ignore[no-untyped-call]
    return text.encode()


def _entries(tasks: Sequence[str], status: str, result: bytes, children: Sequence[object] = ()) -> list[Sent]:
    """Entries of Celery's result backend; none for a task whose result is ignored."""
    return [Sent("task", task, _entry(task, status, result, children)) for task in tasks if task]


def _entry(task: str, status: str, result: bytes, children: Sequence[object]) -> bytes:
    tail = dumps({"traceback": None, "children": children, "task_id": task})[1:].encode()
    return b'{"status":"%b","result":%b,%b' % (status.encode(), result, tail)
