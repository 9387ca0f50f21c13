"""The outbox on Redis: its operations, each described once, and a thin class for an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.store.ops import Operation, ms
from penstock.broker.store.positions import Arg
from penstock.extensions.webhooks.contract import (
    DEFAULT_LIMITS,
    GIVE_UP_S,
    AttemptEnd,
    DeliveryAttempt,
    DueEvent,
    DueEvents,
    EventCounts,
    EventLog,
    EventSettled,
    EventState,
    TakeLimits,
)

if TYPE_CHECKING:
    from penstock.broker.store.aio import AsyncStore

# Deliverers hear on this channel which prefix may have an event that is due. As in `outbox.lua`.
EVENTS_CHANNEL = "ps:events"
# As in `deliver.lua`.
SEND_MAX = 1_000
_STRIDE = 10


def take(key: str, limits: TakeLimits) -> Operation[DueEvents]:
    args: list[Arg] = [ms(limits.lease_s), limits.limit, limits.per_endpoint, ms(limits.give_up_s), *limits.skip_owners]
    return Operation("take_events", key, args, _due)


def settle(key: str, event: DueEvent, end: AttemptEnd, *, give_up_s: float) -> Operation[EventSettled]:
    times = (ms(end.retry_s), ms(end.pause_s), ms(give_up_s))
    args: list[Arg] = [event.id, event.token, event.number, end.outcome.value, *times, attempt_text(event, end)]
    return Operation("settle_event", key, [*args, *map(ms, end.circuit_s)], lambda reply: EventSettled(reply.decode()))


def attempt_text(event: DueEvent, end: AttemptEnd) -> str:
    """One entry of a log, behind its moment."""
    return f"{event.number},{event.event},{event.tries},{end.outcome.value},{end.kept_answer},{ms(end.took_s)}"


def send_events(key: str, verb: str, ids: Sequence[str], owner: str | None) -> Operation[int]:
    return Operation("send_events", key, [verb, "" if owner is None else f"={owner}", *ids], int)


def undelivered(key: str, *, owner: str, before: str, limit: int) -> Operation[list[str]]:
    return Operation("newest", key, ["undelivered", owner, before, limit, ""], lambda reply: [one.decode() for one in reply])


def logs(key: str, ids: Sequence[str]) -> Operation[dict[str, EventLog]]:
    return Operation("event_logs", key, ids, partial(_logs, ids))


def counts(key: str) -> Operation[EventCounts]:
    return Operation("event_counts", key, [], lambda reply: EventCounts(*map(int, reply)))


def _due(reply: Sequence[Any]) -> DueEvents:
    events = tuple(_event(reply[i : i + _STRIDE]) for i in range(1, len(reply), _STRIDE))
    return DueEvents(events, None if reply[0] < 0 else reply[0] / 1000)


def _event(values: Sequence[bytes]) -> DueEvent:
    event_id, token, url, owner, letters, event, number, at, said, tries = (value.decode() for value in values)
    return DueEvent(event_id, token, url, owner, letters, event, int(number), int(at) / 1000, said, int(tries))


def _logs(ids: Sequence[str], reply: Sequence[Sequence[bytes | None]]) -> dict[str, EventLog]:
    known = [(event_id, fields) for event_id, fields in zip(ids, reply, strict=True) if fields[0]]
    return {event_id: _log(*((value or b"").decode() for value in fields)) for event_id, fields in known}


def _log(webhook: str, url: str, owner: str, event: str, state: str, number: str, at: str, log: str) -> EventLog:
    attempts = tuple(_attempt(entry) for entry in log.split(";") if entry)
    letters, moment = webhook.partition(",")[0], int(at) / 1000 if event else None
    return EventLog(url, owner, EventState(state or EventState.PENDING), letters, event, int(number or 0), moment, attempts)


def _attempt(entry: str) -> DeliveryAttempt:
    at, number, event, tries, outcome, answer, took = entry.split(",")
    return DeliveryAttempt(int(at) / 1000, int(number), event, int(tries), outcome, answer, int(took) / 1000)


def _parts(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[i : i + SEND_MAX] for i in range(0, len(ids), SEND_MAX)]


class AsyncOutbox:
    """The events of the jobs of one model, or those of runs. Every call is one atomic, durable step; raises `StoreUnavailable`.

    `key`: the prefix of the model's keys, or RUNS_KEY. A take whose reply was lost is made up for when its lease ends; every
    other call may be repeated.
    """

    def __init__(self, store: AsyncStore, key: str) -> None:
        self._store = store
        self.key = key

    async def take(self, limits: TakeLimits = DEFAULT_LIMITS) -> DueEvents:
        """Take what is due: one event of a job or run at a time, and one of an endpoint whose last attempt failed."""
        return await self._store.run(take(self.key, limits))

    async def settle(self, event: DueEvent, end: AttemptEnd, *, give_up_s: float = GIVE_UP_S) -> EventSettled:
        """Note what came of an attempt. An event that failed is due again, and is given up `give_up_s` after it was first due;
        progress is given up after three attempts, without a trace but in the log.
        """
        return await self._store.run(settle(self.key, event, end, give_up_s=give_up_s))

    async def logs(self, ids: Sequence[str]) -> dict[str, EventLog]:
        """What became of the events of these ids. Unknown ids and those without a webhook are left out."""
        parts = [await self._store.run(logs(self.key, part)) for part in _parts(ids)]
        return {event_id: log for part in parts for event_id, log in part.items()}

    async def send_again(self, ids: Sequence[str], *, owner: str | None = None) -> int:
        """Have the last events of ended jobs or runs sent once more, if they were delivered or given up; returns how many."""
        return sum([await self._store.run(send_events(self.key, "again", part, owner)) for part in _parts(ids)])

    async def dismiss(self, ids: Sequence[str], *, owner: str | None = None) -> int:
        """Take given up events off the list; returns how many were there."""
        return sum([await self._store.run(send_events(self.key, "dismiss", part, owner)) for part in _parts(ids)])

    async def undelivered(self, *, owner: str = "", before: str = "", limit: int = 100) -> list[str]:
        """The ids of events that were given up, newest first, at most a thousand of each owner. `owner` "": of all."""
        return await self._store.run(undelivered(self.key, owner=owner, before=before, limit=limit))

    async def counts(self) -> EventCounts:
        return await self._store.run(counts(self.key))
