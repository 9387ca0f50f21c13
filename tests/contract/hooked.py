"""The outbox of a queue's store, with a short method for each thing that tests of webhooks do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from penstock.broker.memory.outbox import MemoryOutbox
from penstock.broker.memory.store import MemoryStore
from penstock.broker.records import ClaimedJob, Report
from penstock.broker.store.ops import Command, ms, prefix
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.contract import AttemptEnd, DueEvent, EventLog, EventOutcome, EventSettled, Outbox, TakeLimits
from penstock.extensions.webhooks.store.outbox import RedisOutbox
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import JobId
from tests.contract.model_queue import ModelQueue

HOOK = Webhook("https://a.example/hook")
DELIVERED = AttemptEnd(EventOutcome.DELIVERED, "200")
GONE, REFUSED = AttemptEnd(EventOutcome.GONE, "410"), AttemptEnd(EventOutcome.REFUSED, "no such host")
# A lease that is over at once, and one that outlives the test.
NO_TIME, LONG = 0.0, 1_000.0


def again(retry_s: float = 0.0, *, pause_s: float = 0.0, closed_s: float = 0.0) -> AttemptEnd:
    """The end of an attempt that failed. `closed_s`: for how long failures close the endpoint."""
    return AttemptEnd(EventOutcome.AGAIN, "500", 0.1, retry_s, pause_s, (closed_s, closed_s))


class OutboxDeliverer:
    """Takes and settles the events of one outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox

    def take(self, **limits: Any) -> list[DueEvent]:
        return list(self.outbox.take(TakeLimits(**{"lease_s": LONG, **limits})).events)

    def take_one(self, **limits: Any) -> DueEvent:
        [event] = self.take(**limits)
        return event

    def settle(self, event: DueEvent, end: AttemptEnd = DELIVERED, **more: Any) -> EventSettled:
        return self.outbox.settle(event, end, **more)


class Deliverer(OutboxDeliverer):
    """That of one model."""

    def __init__(self, queue: ModelQueue) -> None:
        self._store, self._key = queue.store, prefix(queue.name)
        if isinstance(self._store, MemoryStore):
            super().__init__(self._store.queue(queue.name).outbox)
        else:
            assert isinstance(self._store, RedisStore)
            super().__init__(RedisOutbox(self._store, self._key))

    def log(self, job: JobId) -> EventLog:
        return self.outbox.logs([job.serial])[job.serial]

    def open_endpoints(self, endpoints: Collection[str]) -> None:
        """Let the time pass for which they are closed."""
        assert isinstance(self._store, RedisStore)
        for endpoint in endpoints:
            self._store.send(Command(("DEL", f"{self._key}endpoint:{endpoint}"), int))
            self._store.send(Command(("ZADD", f"{self._key}endpoints", "XX", 0, endpoint), int))

    def age(self, job: JobId, by_s: float) -> None:
        """Have the schedule of the job's event begin earlier."""
        if isinstance(self.outbox, MemoryOutbox):
            self.outbox.hooked[job.serial].since -= by_s
            return
        assert isinstance(self._store, RedisStore)
        words = ("HINCRBY", f"{self._key}job:{job.serial}", "event_since", -ms(by_s))
        self._store.send(Command(words, int))


def ended(queue: ModelQueue, webhook: Webhook = HOOK, **changes: Any) -> JobId:
    """A job that succeeded."""
    job = queue.leased(webhook=webhook, **changes)
    queue.finish(job)
    return job.id


def report_progress(queue: ModelQueue, job: ClaimedJob, fraction: float, note: str) -> None:
    queue.store.report([Report(job.id, job.token, fraction, note)])
