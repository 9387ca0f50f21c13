"""Celery's task events for Flower: one task per job, many events in one message, and never a payload.

The slots' threads queue the events and a thread of its own sends them, so that a slow or absent listener delays no batch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import structlog

from penstock.broker.records import ClaimedJob, Ending, Settled
from penstock.job import JobId, JobState
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batch import Batch, Release, Retry
from penstock.workers.slot.context import Observer

log = structlog.get_logger(__name__)
EVENTS_DROPPED = "events_dropped"

TASK_PREFIX = "penstock.infer."
# There are three events per task. Far above this rate Flower falls behind, and Redis drops it as a subscriber.
SUCCESSES_PER_S = 500
_MESSAGE_EVENTS = 512
_BACKLOG = 20_000
_RETRY_S = 2.0
_GATHER_S = 0.2

_Event = tuple[str, dict[str, Any]]


class Sampler:
    """Limits how many jobs are shown per second. Pure."""

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
    """Sends events while there is a listener: Flower, `celery control enable_events`, `worker -E`."""

    def __init__(self, app: Any, *, hostname: str) -> None:
        self._app = app
        self._hostname = hostname
        self._consumer: Any = None
        self._events: deque[_Event] = deque(maxlen=_BACKLOG)
        self._shown: set[JobId] = set()
        self._sampler = Sampler()
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def follow(self, consumer: Any) -> None:
        """Send events while Celery's `consumer` sends events of tasks."""
        self._consumer = consumer

    @property
    def wants_every_batch(self) -> bool:
        return self._is_listened_to()

    def _is_listened_to(self) -> bool:
        return self._consumer is not None and sends_task_events(self._consumer.event_dispatcher)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._woken.set()
        self._thread.join(timeout=2.0)

    # In the slots' threads.

    def on_claimed(self, spec: ModelSpec, batch: Batch) -> None:
        if not self._is_listened_to():
            return
        if len(self._shown) > _BACKLOG:
            # Jobs that were given back end elsewhere, and would stay in it.
            self._shown.clear()
        now = time.time()
        shown = batch.jobs[: self._sampler.take(batch.size, now)]
        self._shown.update(job.id for job in shown)
        self._queue(event for job in shown for event in _begun_of(job, batch, spec.name, now))

    def on_settled(self, spec: ModelSpec, batch: Batch, answers: Sequence[Settled], store_s: float) -> None:
        if not self._is_listened_to():
            if self._shown:
                self._shown.clear()
            return
        now, runtime = time.time(), batch.stamp.inference_s
        for ending, answer in zip(batch.endings, answers, strict=True):
            if answer is not Settled.STALE:
                self._queue(self._ended(ending, batch, model=spec.name, runtime=runtime, now=now))

    def on_given_back(self, spec: ModelSpec, debt: Retry | Release, answers: Sequence[Settled]) -> None:
        if not self._is_listened_to():
            return
        now = time.time()
        items, why = (debt.items, debt.reason.value) if isinstance(debt, Release) else ((debt.item,), debt.code)
        for item, answer in zip(items, answers, strict=True):
            self._queue(self._gone_back(item.id, answer, model=spec.name, why=why, now=now))

    def _gone_back(self, id: JobId, answer: Settled, *, model: str, why: str, now: float) -> list[_Event]:
        shown = id in self._shown
        self._shown.discard(id)
        if answer is Settled.DEAD:
            begun = [] if shown else _begun(id, model, 1, now)
            return [*begun, ("task-failed", _fields(id, now, exception=why, traceback=""))]
        retried = answer is Settled.OK and shown
        return [("task-retried", _fields(id, now, exception=why, traceback=""))] if retried else []

    def _ended(self, ending: Ending, batch: Batch, *, model: str, runtime: float, now: float) -> list[_Event]:
        shown = ending.id in self._shown
        self._shown.discard(ending.id)
        if ending.state is JobState.SUCCEEDED:
            return [("task-succeeded", _fields(ending.id, now, runtime=runtime, result="''"))] if shown else []
        # A failure is always shown, and Flower needs its beginning too.
        begun = (
            [] if shown else [event for job in batch.jobs if job.id == ending.id for event in _begun_of(job, batch, model, now)]
        )
        return [*begun, ("task-failed", _fields(ending.id, now, exception=ending.error_code, traceback=""))]

    def _queue(self, events: Iterable[_Event]) -> None:
        self._events.extend(events)
        self._woken.set()

    # In the thread of its own.

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._woken.wait()
            self._woken.clear()
            try:
                self._send_all()
            except (OSError, *self._app.connection_for_write().connection_errors) as error:
                log.warning(EVENTS_DROPPED, events=len(self._events), error=str(error))
                self._events.clear()
                self._woken.wait(_RETRY_S)

    def _send_all(self) -> None:
        """Send over one connection as long as events come. A worker without listeners holds no connection."""
        if not self._events:
            return
        with self._app.connection_for_write() as connection:
            dispatcher = self._app.events.Dispatcher(
                connection, hostname=self._hostname, buffer_group=frozenset({"task"}), buffer_limit=_MESSAGE_EVENTS
            )
            while not self._stopped.is_set():
                # D21: a publish by kombu takes longer than a small batch, so events are gathered into one message.
                self._stopped.wait(_GATHER_S)
                self._send(dispatcher)
                if not self._woken.wait(timeout=30.0):
                    return
                self._woken.clear()

    def _send(self, dispatcher: Any) -> None:
        while self._events:
            kind, fields = self._events.popleft()
            dispatcher.send(kind, **fields)
        dispatcher.flush()


def sends_task_events(dispatcher: Any) -> bool:
    """Whether Celery's own dispatcher sends events of tasks. One that is enabled may send heartbeats only."""
    return bool(dispatcher and dispatcher.enabled and (not dispatcher.groups or "task" in dispatcher.groups))


def _begun_of(job: ClaimedJob, batch: Batch, model: str, now: float) -> list[_Event]:
    return _begun(job.id, model, job.attempts, now, received_at=_received_at(job, batch, now))


def _received_at(job: ClaimedJob, batch: Batch, now: float) -> float:
    """When the job was submitted, by this machine's clock: between the two, a watcher sees how long the job was queued.

    An attempt after the first was queued when the one before ended, and that moment is unknown here.
    """
    return now - max(0.0, batch.leased_at - job.created_at) if job.attempts == 1 else now


def _begun(id: JobId, model: str, attempt: int, now: float, *, received_at: float | None = None) -> list[_Event]:
    named = {
        "name": f"{TASK_PREFIX}{model}",
        "args": "()",
        "kwargs": "{}",
        "retries": attempt - 1,
        "eta": None,
        "expires": None,
    }
    received = _fields(id, now if received_at is None else received_at, **named)
    return [("task-received", received), ("task-started", _fields(id, now))]


def _fields(id: JobId, now: float, **fields: Any) -> dict[str, Any]:
    return {"uuid": str(id), "timestamp": now, **fields}
