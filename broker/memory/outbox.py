"""Events for webhooks in plain memory: the rules of functions/outbox.lua and functions/deliver.lua."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from penstock.extensions.webhooks.contract import (
    DEFAULT_LIMITS,
    GIVE_UP_S,
    PROGRESS,
    SKIPPED,
    AttemptEnd,
    DeliveryAttempt,
    DueEvent,
    DueEvents,
    EventCounts,
    EventLog,
    EventOutcome,
    EventSettled,
    EventState,
    TakeLimits,
)
from penstock.extensions.webhooks.webhook import Webhook

LETTERS = {"succeeded": "s", "completed": "s", "failed": "f", "dead": "f", "cancelled": "c", "expired": "x"}
PROGRESS_S, PROGRESS_TRIES = 0.5, 3
UNDELIVERED_MAX, UNDELIVERED_S = 1_000, 86_400.0
HOLD_S, HELD_MOST_S = 60.0, 172_800.0
TRIP, GONE_S, SKIP_S = 5, 86_400.0, 1.0
PAUSE_MOST_S, RETRY_MOST_S = 3_600.0, 86_400.0
LOG_MOST = 20


@dataclass(slots=True)
class Hooked:
    """A job or run with a webhook, its last event, and what became of that. `event` is empty before the first."""

    webhook: Webhook
    owner: str
    endpoint: str
    event: str = ""
    number: int = 0
    at: float = 0.0
    since: float = 0.0
    said: str = ""
    tries: int = 0
    takes: int = 0
    sent_at: float = 0.0
    state: EventState = EventState.PENDING
    attempts: list[DeliveryAttempt] = field(default_factory=list)
    ended: bool = False

    def note(self, event: str, now: float, said: str = "") -> None:
        self.event, self.number, self.said, self.tries = event, self.number + 1, said, 0
        self.at = self.since = now
        self.state = EventState.PENDING

    def log(self, attempt: DeliveryAttempt) -> None:
        self.attempts = [*self.attempts, attempt][-LOG_MOST:]

    def due(self, event_id: str) -> DueEvent:
        url, letters = self.webhook.url, self.webhook.letters
        return DueEvent(
            event_id, str(self.takes), url, self.owner, letters, self.event, self.number, self.at, self.said, self.tries
        )


@dataclass(slots=True)
class EndpointLine:
    """The events of one endpoint: when each is due, or how long it is under way; and how its receiver does."""

    events: dict[str, float] = field(default_factory=dict)
    sending: dict[str, float] = field(default_factory=dict)
    look_at: float | None = None
    failures: int = 0
    closed_until: float = 0.0

    def look_again(self, *, full: bool = False) -> None:
        due, lost = min(self.events.values(), default=None), min(self.sending.values(), default=None)
        found = [moment for moment in ((lost,) if full else (due, lost)) if moment is not None]
        self.look_at = max(min(found), self.closed_until) if found else None

    def take_back_lost(self, now: float) -> None:
        for event_id in [one for one, till in self.sending.items() if till <= now]:
            del self.sending[event_id]
            self.events[event_id] = now

    def in_order(self) -> list[str]:
        return sorted(self.events, key=lambda one: (self.events[one], one))

    def note(self, end: AttemptEnd, now: float) -> None:
        """What an attempt says of the receiver: a success opens the endpoint, failures and a wish to wait close it."""
        if end.outcome is not EventOutcome.AGAIN:
            if end.outcome is not EventOutcome.REFUSED:
                self.failures, self.closed_until = 0, 0.0
            return
        self.failures += 1
        closed_s, (least_s, most_s) = min(PAUSE_MOST_S, end.pause_s), end.circuit_s
        if self.failures >= TRIP:
            closed_s = max(closed_s, min(most_s, least_s * 2 ** (self.failures - TRIP)))
        if closed_s > 0.0:
            self.closed_until = now + closed_s


class MemoryOutbox:
    """See `Outbox`. `clock` answers Unix seconds; `kind` is what the names of events begin with."""

    def __init__(self, clock: Callable[[], float] = time.time, kind: str = "job") -> None:
        self._clock = clock
        self._kind = kind
        self.hooked: dict[str, Hooked] = {}
        self.endpoints: dict[str, EndpointLine] = {}
        self.pending: set[str] = set()
        self.given_up: set[str] = set()
        # Until when a record is kept because of its event, and until when a URL of an endpoint is not called.
        self.kept_until: dict[str, float] = {}
        self._gone: dict[tuple[str, str], float] = {}

    def add(self, event_id: str, webhook: Webhook, owner: str) -> None:
        self.hooked[event_id] = Hooked(webhook, owner, webhook.endpoint(owner))
        self.pending.add(event_id)

    def is_behind(self, webhook: Webhook, owner: str) -> bool:
        """Whether as many events of the owner as allowed are still to be delivered."""
        return sum(self.hooked[one].owner == owner for one in self.pending) >= webhook.max_undelivered

    def note_end(self, event_id: str, state: str, now: float) -> None:
        if (hooked := self.hooked.get(event_id)) is None:
            return
        hooked.ended = True
        if LETTERS[state] in hooked.webhook.letters:
            hooked.note(f"{self._kind}.{'failed' if state == 'dead' else state}", now)
            self._place(event_id, hooked, hooked.since)
        else:
            hooked.state = EventState.UNASKED
            self._settle_places(event_id, hooked)

    def note_progress(self, event_id: str, said: str) -> None:
        hooked = self.hooked.get(event_id)
        if hooked is not None and "p" in hooked.webhook.letters:
            now = self._clock()
            hooked.note(PROGRESS, now, said)
            self._place(event_id, hooked, max(now, hooked.sent_at + PROGRESS_S))

    def take_back(self, event_id: str) -> None:
        """Forget the end of a run that is opened again."""
        if hooked := self.hooked.get(event_id):
            hooked.number, hooked.event, hooked.state, hooked.ended = hooked.number + 1, "", EventState.PENDING, False
            self._settle_places(event_id, hooked)
            self.pending.add(event_id)

    def holds(self, event_id: str) -> bool:
        """Whether the record of this ended job or run stays because its event is still to be delivered."""
        hooked = self.hooked.get(event_id)
        return hooked is not None and hooked.state is EventState.PENDING

    def hold(self, event_id: str) -> None:
        """Keep the record for another while, or give its event up if nobody has done so for long."""
        now = self._clock()
        if now - self.hooked[event_id].since >= HELD_MOST_S:
            self._give_up_untried(event_id, "nobody delivered it")
        else:
            self.kept_until[event_id] = now + HOLD_S

    def drop(self, event_id: str) -> None:
        if hooked := self.hooked.pop(event_id, None):
            self._settle_places(event_id, hooked)
            self.kept_until.pop(event_id, None)

    def take(self, limits: TakeLimits = DEFAULT_LIMITS) -> DueEvents:
        now, taken = self._clock(), list[DueEvent]()
        looks = sorted((line.look_at, name) for name, line in self.endpoints.items() if line.look_at is not None)
        for _, name in [look for look in looks if look[0] <= now]:
            if len(taken) >= limits.limit:
                break
            self._look_at(self.endpoints[name], limits, taken)
        next_at = min((line.look_at for line in self.endpoints.values() if line.look_at is not None), default=None)
        return DueEvents(tuple(taken), None if next_at is None else max(0.0, next_at - now))

    def settle(self, event: DueEvent, end: AttemptEnd, *, give_up_s: float = GIVE_UP_S) -> EventSettled:
        hooked, now = self.hooked.get(event.id), self._clock()
        line = self.endpoints.get(hooked.endpoint) if hooked else None
        if hooked is None or line is None or str(hooked.takes) != event.token or event.id not in line.sending:
            return EventSettled.STALE
        outcome = end.outcome.value
        hooked.log(DeliveryAttempt(now, event.number, event.event, event.tries, outcome, end.kept_answer, end.took_s))
        if end.outcome is EventOutcome.GONE:
            self._gone[hooked.endpoint, hooked.webhook.url] = now + GONE_S
        if hooked.number == event.number:
            self._settle_current(event.id, hooked, line, end, give_up_s)
        elif event.id in line.events:
            line.events[event.id] = max(now, hooked.sent_at + PROGRESS_S) if hooked.event == PROGRESS else now
        line.note(end, now)
        del line.sending[event.id]
        line.look_again()
        current = hooked.number == event.number and hooked.state is EventState.UNDELIVERED
        return EventSettled.UNDELIVERED if current else EventSettled.OK

    def logs(self, ids: Sequence[str]) -> dict[str, EventLog]:
        return {event_id: _log(self.hooked[event_id]) for event_id in ids if event_id in self.hooked}

    def send_again(self, ids: Sequence[str], *, owner: str | None = None) -> int:
        found = [one for one in self._theirs(ids, owner) if self.hooked[one].state not in _NEVER_SENT]
        for event_id in found:
            hooked = self.hooked[event_id]
            line = self.endpoints[hooked.endpoint]
            self._gone.pop((hooked.endpoint, hooked.webhook.url), None)
            line.failures, line.closed_until = 0, 0.0
            hooked.state, hooked.since, hooked.tries = EventState.PENDING, self._clock(), 0
            self.given_up.discard(event_id)
            self.pending.add(event_id)
            self._place(event_id, hooked, hooked.since)
        return len(found)

    def dismiss(self, ids: Sequence[str], *, owner: str | None = None) -> int:
        found = [one for one in self._theirs(ids, owner) if self.hooked[one].state is EventState.UNDELIVERED]
        for event_id in found:
            self._dismiss(event_id)
        return len(found)

    def undelivered(self, *, owner: str = "", before: str = "", limit: int = 100) -> list[str]:
        found = [one for one in self.given_up if (not before or one < before) and owner in ("", self.hooked[one].owner)]
        return sorted(found, reverse=True)[:limit]

    def counts(self) -> EventCounts:
        waiting = sum(len(line.events) + len(line.sending) for line in self.endpoints.values() if line.look_at is not None)
        return EventCounts(waiting, len(self.given_up))

    def _place(self, event_id: str, hooked: Hooked, due: float) -> None:
        line = self.endpoints.setdefault(hooked.endpoint, EndpointLine())
        line.events[event_id] = due
        line.look_at = self._clock()

    def _theirs(self, ids: Collection[str], owner: str | None) -> list[str]:
        known = [one for one in dict.fromkeys(ids) if one in self.hooked and self.hooked[one].event not in ("", PROGRESS)]
        return [one for one in known if owner in (None, self.hooked[one].owner)]

    def _look_at(self, line: EndpointLine, limits: TakeLimits, taken: list[DueEvent]) -> None:
        now, first = self._clock(), next(iter(line.in_order()), "")
        is_open, full = line.closed_until <= now, False
        if is_open and first in self.hooked and self.hooked[first].owner in limits.skip_owners:
            line.look_at = now + SKIP_S
            return
        if is_open:
            line.take_back_lost(now)
            most = 1 if line.failures else limits.per_endpoint
            full = self._take_of(line, most - len(line.sending), limits, taken)
        if line.failures:
            self._give_up_old(line, limits.give_up_s)
        line.look_again(full=full)

    def _take_of(self, line: EndpointLine, free: int, limits: TakeLimits, taken: list[DueEvent]) -> bool:
        """Take up to `free` events of an endpoint; returns whether it has as many under way as it may."""
        now = self._clock()
        for event_id in [one for one in line.in_order() if line.events[one] <= now][: max(0, free) + len(line.sending)]:
            if free <= 0 or len(taken) >= limits.limit:
                break
            if event_id in line.sending:
                line.events[event_id] = line.sending[event_id]
            elif self._take_one(event_id, line, limits.lease_s, taken):
                free -= 1
        return free <= 0

    def _take_one(self, event_id: str, line: EndpointLine, lease_s: float, taken: list[DueEvent]) -> bool:
        hooked, now = self.hooked.get(event_id), self._clock()
        if hooked is None or not hooked.event:
            del line.events[event_id]
            return False
        if self._gone.get((hooked.endpoint, hooked.webhook.url), 0.0) > now:
            self._give_up_gone(event_id, hooked, line)
            return False
        del line.events[event_id]
        line.sending[event_id] = now + lease_s
        hooked.takes, hooked.tries = hooked.takes + 1, hooked.tries + 1
        hooked.sent_at = now if hooked.event == PROGRESS else hooked.sent_at
        taken.append(hooked.due(event_id))
        return True

    def _give_up_gone(self, event_id: str, hooked: Hooked, line: EndpointLine) -> None:
        if hooked.event == PROGRESS:
            hooked.state = EventState.DISMISSED
            del line.events[event_id]
        else:
            self._give_up_untried(event_id, "closed by 410")

    def _give_up_old(self, line: EndpointLine, age_s: float) -> None:
        for event_id in line.in_order():
            hooked = self.hooked.get(event_id)
            if hooked is None or hooked.event in ("", PROGRESS):
                continue
            if self._clock() - hooked.since < age_s:
                return
            self._give_up_untried(event_id, "the endpoint fails")

    def _settle_current(self, event_id: str, hooked: Hooked, line: EndpointLine, end: AttemptEnd, give_up_s: float) -> None:
        now, is_end, again = self._clock(), hooked.event != PROGRESS, end.outcome is EventOutcome.AGAIN
        if again and (now - hooked.since < give_up_s if is_end else hooked.tries < PROGRESS_TRIES):
            due = now + min(RETRY_MOST_S, end.retry_s)
            line.events[event_id] = min(due, hooked.since + give_up_s) if is_end else due
        elif end.outcome is EventOutcome.DELIVERED:
            hooked.state = EventState.DELIVERED
            if is_end:
                self._settle_places(event_id, hooked)
        elif is_end:
            self._give_up(event_id, hooked)
        else:
            hooked.state = EventState.DISMISSED

    def _give_up_untried(self, event_id: str, why: str) -> None:
        hooked = self.hooked[event_id]
        hooked.log(DeliveryAttempt(self._clock(), hooked.number, hooked.event, hooked.tries, SKIPPED, why, 0.0))
        self._give_up(event_id, hooked)

    def _give_up(self, event_id: str, hooked: Hooked) -> None:
        hooked.state = EventState.UNDELIVERED
        self._settle_places(event_id, hooked)
        self.given_up.add(event_id)
        self.kept_until[event_id] = self._clock() + UNDELIVERED_S
        of_owner = self.undelivered(owner=hooked.owner, limit=UNDELIVERED_MAX + 1)
        if len(of_owner) > UNDELIVERED_MAX:
            self._dismiss(of_owner[-1])

    def _dismiss(self, event_id: str) -> None:
        self.hooked[event_id].state = EventState.DISMISSED
        self.given_up.discard(event_id)

    def _settle_places(self, event_id: str, hooked: Hooked) -> None:
        """An event that is not to be delivered any more stands in no line."""
        if line := self.endpoints.get(hooked.endpoint):
            line.events.pop(event_id, None)
        self.pending.discard(event_id)
        self.given_up.discard(event_id)


_NEVER_SENT = (EventState.PENDING, EventState.UNASKED)


def _log(hooked: Hooked) -> EventLog:
    at = hooked.at if hooked.event else None
    url, letters = hooked.webhook.url, hooked.webhook.letters
    return EventLog(url, hooked.owner, hooked.state, letters, hooked.event, hooked.number, at, tuple(hooked.attempts))
