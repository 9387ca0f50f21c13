"""Which steps of a history a caller asks for. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.broker.history import LENGTHS_S, LONGEST_S, level_for
from penstock.errors import BadRequest
from penstock.gateway.asgi.negotiation import parse_moment
from penstock.gateway.asgi.wire import rfc3339

DEFAULT_S = 3_600
# Clocks differ: what begins this much too early begins with the first step that is kept.
_SLACK_S = 60.0


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """What a caller asks for: from `since`, or the last `range_s`, to `until`. Unix seconds; None: an hour back, and now."""

    range_s: int | None = None
    since: float | None = None
    until: float | None = None

    @property
    def ends_now(self) -> bool:
        return self.since is None and self.until is None


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """The steps of `LENGTHS_S[level]` that begin at the moments `at`, in Unix seconds of the store's clock."""

    level: int
    at: range

    @property
    def length_s(self) -> int:
        return LENGTHS_S[self.level]


def asked_range(range_s: int | None = None, since: str | None = None, until: str | None = None) -> HistoryRange:
    """As the query parameters `range_s`, `from` and `to` say it; raises `BadRequest`."""
    if range_s is not None and since is not None:
        raise BadRequest("range_s and from both say where the history begins", hint="Send one of them; to goes with either.")
    return HistoryRange(
        range_s,
        None if since is None else parse_moment(since, name="from"),
        None if until is None else parse_moment(until, name="to"),
    )


def level_of(asked: HistoryRange, now: float) -> int:
    """Of the shortest steps that reach back so far. `now` is by the store's clock; a range that ends now has the same level at
    any time. Raises `BadRequest` for steps that are not kept.
    """
    since, until = _ends(asked, now)
    if asked.since is not None and asked.since >= now:
        raise BadRequest(f"from lies in the future: by the store's clock it is {rfc3339(now)}")
    # The earliest moments that can be written have no date in UTC.
    begin, kept_from = rfc3339(max(0.0, since)), rfc3339(now - LONGEST_S)
    if since >= until:
        raise BadRequest(f"from ({begin}) does not lie before to ({rfc3339(max(0.0, until))})")
    if since < now - LONGEST_S - _SLACK_S:
        raise BadRequest(
            f"{begin} is too long ago: the history is kept for {LONGEST_S // 86_400} days, from {kept_from}",
            hint="Ask for a later time, or a shorter one.",
        )
    return level_for(min(LONGEST_S, now - since))


def window_of(asked: HistoryRange, level: int, now: float) -> HistoryWindow:
    """What comes after `now` is left out. Where the range ends now, there are as many steps at any time."""
    (since, until), length = _ends(asked, now), LENGTHS_S[level]
    # The last step is the one that holds the moment before `until`.
    last = math.ceil(until / length) * length - length
    first = int(since // length) * length if asked.since is not None else last + length - _steps(until - since, length) * length
    return HistoryWindow(level, range(first, last + 1, length))


def _ends(asked: HistoryRange, now: float) -> tuple[float, float]:
    until = now if asked.until is None else min(asked.until, now)
    return until - (asked.range_s or DEFAULT_S) if asked.since is None else asked.since, until


def _steps(seconds: float, length: int) -> int:
    # The difference of two moments is off by less than a microsecond.
    return math.ceil(round(seconds, 3) / length)
