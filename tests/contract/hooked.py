"""The outbox of a queue's store, with a short method for each thing that tests of webhooks do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from penstock.broker.records import ClaimedJob, Report
from penstock.broker.store.ops import Command, ms, prefix
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.contract import (
    DEFAULT_LIMITS,
    GIVE_UP_S,
    AttemptEnd,
    DueEvent,
    DueEvents,
    EventCounts,
    EventLog,
    EventOutcome,
    EventSettled,
    TakeLimits,
)
from penstock.extensions.webhooks.store import outbox
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


class BlockingOutbox:
    """The calls of `AsyncOutbox` for tests, which have no event loop. `key`: the prefix of a model's keys, or RUNS_KEY."""

    def __init__(self, store: RedisStore, key: str) -> None:
        self._store = store
        self._key = key

    def take(self, limits: TakeLimits = DEFAULT_LIMITS) -> DueEvents:
        return self._store.run(outbox.take(self._key, limits))

    def settle(self, event: DueEvent, end: AttemptEnd, *, give_up_s: float = GIVE_UP_S) -> EventSettled:
        return self._store.run(outbox.settle(self._key, event, end, give_up_s=give_up_s))

    def logs(self, ids: Sequence[str]) -> dict[str, EventLog]:
        return self._store.run(outbox.logs(self._key, ids))

    def send_again(self, ids: Sequence[str], *, owner: str | None = None) -> int:
        return self._store.run(outbox.send_events(self._key, "again", ids, owner))

    def dismiss(self, ids: Sequence[str], *, owner: str | None = None) -> int:
        return self._store.run(outbox.send_events(self._key, "dismiss", ids, owner))

    def undelivered(self, *, owner: str = "", before: str = "", limit: int = 100) -> list[str]:
        return self._store.run(outbox.undelivered(self._key, owner=owner, before=before, limit=limit))

    def counts(self) -> EventCounts:
        return self._store.run(outbox.counts(self._key))


class OutboxDeliverer:
    """Takes and settles the events of one outbox."""

    def __init__(self, outbox: BlockingOutbox) -> None:
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
        assert isinstance(queue.store, RedisStore)
        self._store, self._key = queue.store, prefix(queue.name)
        super().__init__(BlockingOutbox(self._store, self._key))

    def log(self, job: JobId) -> EventLog:
        return self.outbox.logs([job.serial])[job.serial]

    def open_endpoints(self, endpoints: Collection[str]) -> None:
        """Let the time pass for which they are closed."""
        for endpoint in endpoints:
            self._store.send(Command(("DEL", f"{self._key}endpoint:{endpoint}"), int))
            self._store.send(Command(("ZADD", f"{self._key}endpoints", "XX", 0, endpoint), int))

    def age(self, job: JobId, by_s: float) -> None:
        """Have the schedule of the job's event begin earlier."""
        words = ("HINCRBY", f"{self._key}job:{job.serial}", "event_since", -ms(by_s))
        self._store.send(Command(words, int))


def ended(queue: ModelQueue, webhook: Webhook = HOOK, **changes: Any) -> JobId:
    """A job that succeeded."""
    job = queue.leased(webhook=webhook, **changes)
    queue.finish(job)
    return job.id


def report_progress(queue: ModelQueue, job: ClaimedJob, fraction: float, note: str) -> None:
    queue.store.report([Report(job.id, job.token, fraction, note)])
