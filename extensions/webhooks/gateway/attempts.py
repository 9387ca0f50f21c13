"""What follows an attempt to deliver an event: it is delivered, tried again later, or given up. Pure."""

# D92: docs/design/webhooks.md
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from penstock.extensions.webhooks.contract import AttemptEnd, EventOutcome

_GONE = 410
# No rule of the settings allows the URL any more.
NOT_ALLOWED = "not_allowed"
# The record that the event is about is gone.
NO_RECORD = "no_record"
# With these statuses a receiver may say how long it wants to be left alone.
_BUSY = frozenset({429, 503})
LONGEST_PAUSE_S = 3_600.0
_JITTER = 0.2
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReceiverReply:
    """A receiver's answer: its status, or 0 and one word for why there is none. `retry_after_s` None: it named no time."""

    status: int = 0
    failure: str = ""
    retry_after_s: float | None = None

    @property
    def outcome(self) -> EventOutcome:
        if 200 <= self.status < 300:
            return EventOutcome.DELIVERED
        if self.failure in (NOT_ALLOWED, NO_RECORD):
            return EventOutcome.REFUSED
        return EventOutcome.GONE if self.status == _GONE else EventOutcome.AGAIN

    @property
    def word(self) -> str:
        return str(self.status) if self.status else self.failure


@dataclass(frozen=True, slots=True)
class Schedule:
    """An event is sent again after each of `retry_s` in turn, then after the last of them over and over. The store ends that.

    `circuit_s`: how long an endpoint that keeps failing is left alone, at least and at most.
    """

    retry_s: Sequence[float]
    circuit_s: tuple[float, float]

    def end_of(self, reply: ReceiverReply, *, tries: int, took_s: float, chance: float) -> AttemptEnd:
        """`tries`: how often the event was tried, this attempt included. `chance`: 0 to 1."""
        pause_s = min(reply.retry_after_s or 0.0, LONGEST_PAUSE_S) if reply.status in _BUSY else 0.0
        return AttemptEnd(
            reply.outcome, reply.word, took_s, max(pause_s, self._wait_s(tries, chance)), pause_s, circuit_s=self.circuit_s
        )

    def _wait_s(self, tries: int, chance: float) -> float:
        planned = self.retry_s[min(max(tries, 1), len(self.retry_s)) - 1]
        return planned * (1.0 - _JITTER + 2 * _JITTER * chance)


def retry_after_s(text: str | None, sent: str | None = None) -> float | None:
    """The seconds of a Retry-After header, which is a number or a date; None for anything else.

    `sent`: the Date header of the same answer. A date counts from it, so that the two clocks need not agree.
    """
    if text is None:
        return None
    if _SECONDS.fullmatch(text.strip()):
        return float(text)
    until, now = _moment(text), _moment(sent or "")
    return None if until is None or now is None else max(0.0, (until - now).total_seconds())


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
