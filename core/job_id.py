"""Job ids: 26 sortable characters, a dash, and the model, so that the id alone names the Redis slot that holds the job."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import NamedTuple

from penstock.errors import MalformedId

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SERIAL = re.compile(r"[0-9a-hjkmnp-tv-z]{26}")
# Crockford's base 32 in lower case: sorts like the number and has no i, l, o, u to misread.
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80
_PAIRS = [a + b for a in _DIGITS for b in _DIGITS]


class JobId(NamedTuple):
    """A job's public name. `serial` is unique within the model; `str()` is what callers see."""

    serial: str
    model: str

    def __str__(self) -> str:
        return f"{self.serial}-{self.model}"


class _Clock:
    """The last serial handed out, so that ids of one process ascend even within one millisecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def next(self) -> int:
        fresh = (time.time_ns() // 1_000_000) << _RANDOM_BITS | int.from_bytes(os.urandom(10), "big")
        with self._lock:
            # Within one millisecond (or a clock set back) count on from the last: sortable, and still 80 random bits to start from.
            same_tick = fresh >> _RANDOM_BITS <= self._last >> _RANDOM_BITS
            self._last = self._last + 1 + (fresh & 0xFFFF) if same_tick else fresh
            return self._last


_clock = _Clock()


def new_serial() -> str:
    """26 characters: 48 bits of Unix milliseconds, 80 random bits (the ULID layout, github.com/ulid/spec, in lower case)."""
    number = _clock.next()
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10)])


def new_job_id(model: str) -> JobId:
    return JobId(new_serial(), model)


def parse_job_id(text: str) -> JobId:
    """Split a public id; raises `MalformedId` when it cannot be one of ours."""
    serial, dash, model = text.partition("-")
    if not dash or not _SERIAL.fullmatch(serial) or not MODEL_NAME.fullmatch(model):
        raise MalformedId(f"{text[:80]!r} is not a job id; ids look like 01k9xw3c5t8ze2m4v6b7n0q1rs-square")
    return JobId(serial, model)
