"""The calls of a load test: their kind, times and duration; and the syntax in which a user writes them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import BadRequest
from penstock.loadtest.generator.arrivals import Stretch

STEPS = 10
_RATE_HINT = "write 200, 50..500 (10 steps), 50..500/4 (4 steps), 50,100,400 (these steps) or 50:500 (a ramp)"


class Kind(StrEnum):
    """The kind of server, which determines the paths of calls."""

    PENSTOCK = "penstock"
    TORCHSERVE = "torchserve"
    OIP = "oip"
    HTTP = "http"


class CallStyle(StrEnum):
    """sync: the answer is the result. async: submit, then long-poll for the result. submit: it ends with the 202."""

    SYNC = "sync"
    ASYNC = "async"
    SUBMIT = "submit"


class Arrivals(StrEnum):
    POISSON = "poisson"
    CONSTANT = "constant"
    TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the measured time that is reported separately. `rate`: requests per second to offer; 0: not prescribed."""

    begins_s: float
    ends_s: float
    rate: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ends_s - self.begins_s


@dataclass(frozen=True, slots=True)
class Shape:
    """A closed loop if `concurrency` is given; otherwise an open loop along `profile`, or at the moments of `trace`.

    No figure counts the first `warm_up_s`, or answers later than `drain_s` after the end. An open loop opens at most `most`
    connections.
    """

    duration_s: float = 30.0
    warm_up_s: float = 5.0
    concurrency: int | None = None
    profile: tuple[Stretch, ...] = ()
    arrivals: Arrivals = Arrivals.POISSON
    trace: tuple[float, ...] = ()
    seed: int = 1
    deadline_s: float = math.inf
    drain_s: float = 30.0
    most: int = 1_024

    @property
    def whole_s(self) -> float:
        return self.warm_up_s + self.duration_s

    def schedule(self) -> tuple[Stretch, ...]:
        """The profile after a warm-up at the profile's first rate."""
        if not self.profile or not self.warm_up_s:
            return self.profile
        first = self.profile[0].start or self.profile[0].end / STEPS
        return (Stretch(first, first, self.warm_up_s), *self.profile)

    def steps(self) -> list[Step]:
        """A ramp is reported in ten parts, like a staircase of ten steps."""
        if not self.profile:
            rate = len([at for at in self.trace if at >= self.warm_up_s]) / self.duration_s if self.trace else 0.0
            return [Step(0.0, self.duration_s, rate)]
        if len(self.profile) == 1 and self.profile[0].start != self.profile[0].end:
            return _slices(self.profile[0])
        ends = [sum(stretch.seconds for stretch in self.profile[: number + 1]) for number in range(len(self.profile))]
        return [Step(end - part.seconds, end, part.start) for end, part in zip(ends, self.profile, strict=True)]


def _slices(ramp: Stretch) -> list[Step]:
    seconds, rise = ramp.seconds / STEPS, (ramp.end - ramp.start) / STEPS
    return [Step(number * seconds, (number + 1) * seconds, ramp.start + (number + 0.5) * rise) for number in range(STEPS)]


def read_rate(text: str, duration_s: float) -> tuple[Stretch, ...]:
    """The profile that `--rate` describes over the measured time. Raises `BadRequest`."""
    numbers = [_number(word, text) for word in re.split(r"\.\.|[:,/]", text)]
    if re.fullmatch(r"[^.:,/]+(\.\d+)?", text):
        return (Stretch(numbers[0], numbers[0], duration_s),)
    if ":" in text and len(numbers) == 2:
        return (Stretch(numbers[0], numbers[1], duration_s),)
    return _steps(_rates(text, numbers), duration_s)


def _rates(text: str, numbers: Sequence[float]) -> list[float]:
    if ".." not in text:
        if "/" in text or ":" in text:
            raise _unreadable(text)
        return list(numbers)
    if len(numbers) not in (2, 3) or "," in text or ":" in text:
        raise _unreadable(text)
    count = int(numbers[2]) if len(numbers) == 3 else STEPS
    if count < 2:
        raise _unreadable(text)
    return [numbers[0] + (numbers[1] - numbers[0]) * number / (count - 1) for number in range(count)]


def _steps(rates: Sequence[float], duration_s: float) -> tuple[Stretch, ...]:
    return tuple(Stretch(rate, rate, duration_s / len(rates)) for rate in rates)


def _number(word: str, text: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise _unreadable(text)
    return number


def _unreadable(text: str) -> BadRequest:
    return BadRequest(f"--rate {text!r} cannot be read", hint=_RATE_HINT)
