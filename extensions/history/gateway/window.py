"""Which steps of a history a caller asks for. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.errors import BadRequest
from penstock.extensions.history.store import LONGEST_S, level_for
from penstock.gateway.asgi.negotiation import parse_moment
from penstock.gateway.asgi.wire import rfc3339

DEFAULT_S = 3_600
# Clocks differ: a range that begins this much too early begins with the first kept step.
_SLACK_S = 60.0


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """What a caller asks for: from `since`, or the last `range_s`, to `until`. Unix seconds; None: an hour back, and now."""

    range_s: int | None = None
    since: float | None = None
    until: float | None = None

    @property
    def is_usual(self) -> bool:
        """Whether it ends now and the store always keeps all of it."""
        return self.since is None and self.until is None and (self.range_s or DEFAULT_S) <= LONGEST_S


@dataclass(frozen=True, slots=True)
class HistoryWindow:
    """The steps of `length_s` that begin at the moments `at`, in Unix seconds of the store's clock."""

    length_s: int
    at: range


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
    """The level of the shortest steps that reach back far enough. `now` is by the store's clock; a range that ends now always
    has the same level. Raises `BadRequest` for steps that are not kept.
    """
    _refuse_no_time(asked, now)
    since, _ = _ends_of(asked, now)
    if since < now - LONGEST_S - _SLACK_S:
        raise BadRequest(
            f"{_utc(since)} is too long ago: the history is kept for {LONGEST_S // 86_400} days, from {_utc(now - LONGEST_S)}",
            hint="Ask for a later time, or for a shorter one. A Prometheus that scrapes /metrics has longer ones.",
        )
    return level_for(min(LONGEST_S, now - since))


def _refuse_no_time(asked: HistoryRange, now: float) -> None:
    """Raises `BadRequest` if the end does not come after the begin, or nothing has happened yet."""
    since, until = _ends_of(asked, now)
    if asked.since is not None and asked.since >= now:
        raise BadRequest(f"from lies in the future: by the store's clock it is {_utc(now)}")
    if since >= until:
        raise BadRequest(f"from ({_utc(since)}) does not lie before to ({_utc(until)})")


def window_of(asked: HistoryRange, length: int, now: float) -> HistoryWindow:
    """Steps after `now` are left out. A range that ends now always has the same number of steps."""
    since, until = _ends_of(asked, now)
    # The last step is the one that holds the moment before `until`.
    last = math.ceil(until / length) * length - length
    first = int(since // length) * length if asked.since is not None else last + length - _steps(until - since, length) * length
    return HistoryWindow(length, range(first, last + 1, length))


def _ends_of(asked: HistoryRange, now: float) -> tuple[float, float]:
    until = now if asked.until is None else min(asked.until, now)
    return until - (asked.range_s or DEFAULT_S) if asked.since is None else asked.since, until


def _utc(at: float) -> str:
    # The earliest moments that can be written have no date in UTC.
    return rfc3339(max(0.0, at))


def _steps(seconds: float, length: int) -> int:
    # The difference of two moments is off by less than a microsecond.
    return math.ceil(round(seconds, 3) / length)
