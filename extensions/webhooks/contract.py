"""The events that webhooks receive, as the outbox hands them out and settles them: plain frozen values."""

# D90: docs/design/webhooks.md
from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

PROGRESS = "job.progress"
GIVE_UP_S = 86_400.0
ANSWER_CHARS = 64


class EventOutcome(StrEnum):
    """What came of one attempt."""

    DELIVERED = "delivered"
    AGAIN = "again"  # failed, and worth another attempt
    GONE = "gone"  # the receiver wants nothing more at this URL: its owner's events are not sent there for a day
    REFUSED = "refused"  # it can never be delivered, through no fault of the receiver: given up at once


class EventState(StrEnum):
    """What has become of the last event of a job or run."""

    PENDING = "pending"  # to come, due, or tried again
    DELIVERED = "delivered"
    UNDELIVERED = "undelivered"  # given up; it can be sent once more
    DISMISSED = "dismissed"  # given up, and not on the list
    UNASKED = "unasked"  # the webhook did not ask for this end of the job or run


@dataclass(frozen=True, slots=True)
class DueEvent:
    """An event that the caller holds under a lease. `id`: the serial of its job, or the id of its run.

    `number` counts the events of this job or run: one number never names two events. `letters`: those of the webhook. `said`:
    fraction and note of an event of progress. `tries`: attempts, this one included. `at`: when it happened, as Unix seconds by
    the store's clock; it stays the same for all attempts.
    """

    id: str
    token: str
    url: str
    owner: str
    letters: str
    event: str
    number: int
    at: float
    said: str
    tries: int


@dataclass(frozen=True, slots=True)
class DueEvents:
    """`next_in_s`: when something may be due; None if nothing waits."""

    events: tuple[DueEvent, ...] = ()
    next_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class TakeLimits:
    """`per_endpoint`: the most deliveries side by side to one endpoint, of all deliverers together.

    `skip_owners`: owners who are at the caller's limit of deliveries; their endpoints are passed over for a second.
    """

    lease_s: float = 30.0
    limit: int = 64
    per_endpoint: int = 4
    give_up_s: float = GIVE_UP_S
    skip_owners: Collection[str] = ()


DEFAULT_LIMITS = TakeLimits()


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """`answer`: the status or the kind of failure, never what the receiver wrote; 64 characters of it are kept.

    `retry_s`: when this event is tried again, a day later at most. `pause_s`: for how long the receiver asks to be left alone;
    an hour is the most. `circuit_s`: for how long failures in a row close the endpoint, at the least and at the most.
    """

    outcome: EventOutcome
    answer: str
    took_s: float = 0.0
    retry_s: float = 0.0
    pause_s: float = 0.0
    circuit_s: tuple[float, float] = (10.0, 300.0)

    @property
    def kept_answer(self) -> str:
        """Commas and semicolons part the entries of a log."""
        return self.answer[:ANSWER_CHARS].replace(";", " ").replace(",", " ")


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """One line of a delivery log, which has the last twenty. `outcome`: an `EventOutcome`; or `skipped` if the event was given
    up without an attempt, and `answer` says why.
    """

    at: float
    number: int
    event: str
    tried: int
    outcome: str
    answer: str
    took_s: float


@dataclass(frozen=True, slots=True)
class EventLog:
    """The last event of a job or run, and the attempts to deliver its events. `event` and `at` are empty until there
    was one.
    """

    url: str
    owner: str
    state: EventState
    letters: str
    event: str = ""
    number: int = 0
    at: float | None = None
    attempts: tuple[DeliveryAttempt, ...] = ()


class EventSettled(StrEnum):
    OK = "ok"
    UNDELIVERED = "undelivered"  # the event was given up
    STALE = "stale"  # settled before, or the lease had passed and the event was taken back: nothing was changed


@dataclass(frozen=True, slots=True)
class EventCounts:
    """`waiting`: events that are due, now or later, over the first thousand endpoints; `undelivered`: those given up."""

    waiting: int
    undelivered: int
