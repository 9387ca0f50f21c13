"""The moments at which requests are meant to leave: seconds from 0 on, ascending. Pure, and equal for equal seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count

from penstock.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Stretch:
    """A rate (requests per second) that changes linearly from `start` to `end` over `seconds`."""

    start: float
    end: float
    seconds: float

    @property
    def expected(self) -> float:
        """The number of requests in the whole stretch."""
        return (self.start + self.end) / 2.0 * self.seconds

    def moment(self, requests: float) -> float:
        """Seconds until `requests` have been due: start t + (end - start) t^2 / (2 seconds) = requests, solved for t."""
        slope = (self.end - self.start) / self.seconds
        # This form of the solution has no difference of two close numbers, and also holds for slope 0 and start 0.
        root = math.sqrt(max(0.0, self.start * self.start + 2.0 * slope * requests))
        return 2.0 * requests / (self.start + root) if requests else 0.0


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Endless Poisson arrivals at `rate` per second."""
    return (at / rate for at in unit_poisson(seed))


def constant(rate: float) -> Iterator[float]:
    return (number / rate for number in count(1))


def unit_poisson(seed: int) -> Iterator[float]:
    """Independent exponential gaps with a mean of 1."""
    gaps = random.Random(seed)
    at = 0.0
    while True:
        at += gaps.expovariate(1.0)
        yield at


def unit_constant() -> Iterator[float]:
    return (float(number) for number in count(1))


def along(profile: Sequence[Stretch], units: Iterator[float]) -> Iterator[float]:
    """Arrivals at rate 1, rescaled to the profile's rate stretch by stretch; they end with the last stretch."""
    at = next(units)
    before, began = 0.0, 0.0
    for stretch in profile:
        while at - before <= stretch.expected:
            yield began + stretch.moment(at - before)
            at = next(units)
        before += stretch.expected
        began += stretch.seconds


def every_nth(moments: Iterable[float], first: int, step: int) -> Iterator[float]:
    """The part of one generator in a schedule that `step` generators share."""
    return (moment for number, moment in enumerate(moments) if number % step == first)


def read_trace(text: str) -> list[float]:
    """The moments of a recorded trace, relative to its first: one per line, in seconds or as ISO 8601. Text after a comma
    (other columns) or after `#` (a comment) is ignored. Raises `BadRequest`."""
    lines = (line.partition("#")[0].partition(",")[0].strip() for line in text.splitlines())
    moments = sorted(_moment(line, number) for number, line in enumerate(lines, 1) if line)
    if not moments:
        raise BadRequest("the trace holds no moments", hint="write one per line: seconds, or 2026-11-21T10:00:00.25Z")
    return [moment - moments[0] for moment in moments]


def _moment(text: str, number: int) -> float:
    for read in (float, _iso):
        try:
            moment = read(text)
        except ValueError:
            continue
        if math.isfinite(moment):
            return moment
    raise BadRequest(f"line {number} of the trace is not a moment: {text[:40]!r}", hint="seconds, or ISO 8601, one per line")


def _iso(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
