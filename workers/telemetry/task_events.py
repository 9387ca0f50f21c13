"""Celery's task events for Flower: one task per job, many events in one message, and never a payload.

Told by the slots' threads, sent by a thread of its own: a slow or absent listener must not hold up a batch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog
from celery.worker import state as worker_state

from penstock.broker.records import Ending, Settled
from penstock.job import JobState
from penstock.job_id import JobId
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batcher import Batch
from penstock.workers.slot.context import Observer
from penstock.workers.slot.outcomes import Release, Retry

log = structlog.get_logger(__name__)
EVENTS_DROPPED = "events_dropped"

TASK_PREFIX = "penstock.infer."
# Three events per task: far above this rate Flower falls behind, and Redis drops it as a subscriber.
SUCCESSES_PER_S = 500
_MESSAGE_EVENTS = 512
_BACKLOG = 20_000
_RETRY_S = 2.0
_GATHER_S = 0.2

_Event = tuple[str, dict[str, Any]]


class Sampler:
    """Which jobs are shown. Pure: all of them up to a rate, then as many per second as that rate allows."""

    def __init__(self, per_s: int = SUCCESSES_PER_S) -> None:
        self._per_s = per_s
        self._second = -1
        self._left = 0

    def take(self, wanted: int, now: float) -> int:
        """How many of `wanted` may be shown at `now`."""
        if int(now) != self._second:
            self._second, self._left = int(now), self._per_s
        granted = min(wanted, self._left)
        self._left -= granted
        return granted


class EventFeed(Observer):
    """Tells Celery's listeners what the slots do, once asked to: by Flower, `celery control enable_events`, `worker -E`."""

    def __init__(self, app: Any, *, hostname: str) -> None:
        self._app = app
        self._hostname = hostname
        self._listened: Callable[[], bool] = lambda: False
        self._events: deque[_Event] = deque(maxlen=_BACKLOG)
        self._shown: set[JobId] = set()
        self._sampler = Sampler()
        self._count_lock = threading.Lock()
        self._bell = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def follow(self, listened: Callable[[], bool]) -> None:
        """`listened` says whether they are wanted; asked for every batch."""
        self._listened = listened

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._bell.set()
        self._thread.join(timeout=2.0)

    # Told by the slots.

    def claimed(self, spec: ModelSpec, batch: Batch) -> None:
        if not self._listened():
            return
        if len(self._shown) > _BACKLOG:
            # Those given back never end here.
            self._shown.clear()
        now = time.time()
        shown = batch.jobs[: self._sampler.take(batch.size, now)]
        self._shown.update(job.id for job in shown)
        self._tell(event for job in shown for event in _begun(job.id, spec.name, job.attempts, now))

    def settled(self, spec: ModelSpec, batch: Batch, answers: Sequence[Settled], store_s: float) -> None:
        # Celery's own counter, shown by `inspect stats` and Flower.
        with self._count_lock:
            worker_state.total_count[f"{TASK_PREFIX}{spec.name}"] += len(batch.endings)
        if not self._listened():
            if self._shown:
                self._shown.clear()
            return
        now, runtime = time.time(), batch.stamp.inference_s
        for ending, answer in zip(batch.endings, answers, strict=True):
            if answer is not Settled.STALE:
                self._tell(self._ended(ending, spec.name, runtime, now))

    def given_back(self, spec: ModelSpec, debt: Retry | Release, answers: Sequence[Settled]) -> None:
        if not self._listened():
            return
        now = time.time()
        items, why = (debt.items, debt.reason.value) if isinstance(debt, Release) else ((debt.item,), debt.code)
        for item, answer in zip(items, answers, strict=True):
            self._tell(self._gone_back(item.id, answer, model=spec.name, why=why, now=now))

    def _gone_back(self, id: JobId, answer: Settled, *, model: str, why: str, now: float) -> list[_Event]:
        shown = id in self._shown
        self._shown.discard(id)
        if answer is Settled.DEAD:
            begun = [] if shown else _begun(id, model, 1, now)
            return [*begun, ("task-failed", _fields(id, now, exception=why, traceback=""))]
        retried = answer is Settled.OK and shown
        return [("task-retried", _fields(id, now, exception=why, traceback=""))] if retried else []

    def _ended(self, ending: Ending, model: str, runtime: float, now: float) -> list[_Event]:
        shown = ending.id in self._shown
        self._shown.discard(ending.id)
        if ending.state is JobState.SUCCEEDED:
            return [("task-succeeded", _fields(ending.id, now, runtime=runtime, result="''"))] if shown else []
        # A failure is always shown, so its beginning must be too.
        begun = [] if shown else _begun(ending.id, model, 1, now)
        return [*begun, ("task-failed", _fields(ending.id, now, exception=ending.error_code, traceback=""))]

    def _tell(self, events: Iterable[_Event]) -> None:
        self._events.extend(events)
        self._bell.set()

    # Sent by the thread.

    def _run(self) -> None:
        while not self._over.is_set():
            self._bell.wait()
            self._bell.clear()
            try:
                self._send_all()
            except (OSError, *self._app.connection_for_write().connection_errors) as error:
                log.warning(EVENTS_DROPPED, events=len(self._events), error=str(error))
                self._events.clear()
                self._bell.wait(_RETRY_S)

    def _send_all(self) -> None:
        """One connection for as long as there is something to say: a worker that nobody watches holds none."""
        if not self._events:
            return
        with self._app.connection_for_write() as connection:
            dispatcher = self._app.events.Dispatcher(
                connection, hostname=self._hostname, buffer_group=frozenset({"task"}), buffer_limit=_MESSAGE_EVENTS
            )
            while not self._over.is_set():
                # kombu's publish takes longer than a small batch does; one message for many keeps it off the slots' backs.
                self._over.wait(_GATHER_S)
                self._send(dispatcher)
                if not self._bell.wait(timeout=30.0):
                    return
                self._bell.clear()

    def _send(self, dispatcher: Any) -> None:
        while self._events:
            kind, fields = self._events.popleft()
            dispatcher.send(kind, **fields)
        dispatcher.flush()


def _begun(id: JobId, model: str, attempt: int, now: float) -> list[_Event]:
    named = {
        "name": f"{TASK_PREFIX}{model}",
        "args": "()",
        "kwargs": "{}",
        "retries": attempt - 1,
        "eta": None,
        "expires": None,
    }
    return [("task-received", _fields(id, now, **named)), ("task-started", _fields(id, now))]


def _fields(id: JobId, now: float, **fields: Any) -> dict[str, Any]:
    return {"uuid": str(id), "timestamp": now, **fields}
