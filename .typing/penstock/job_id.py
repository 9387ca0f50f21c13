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
_POOL_BYTES = 1_024
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
        self._pool = b""

    def next(self) -> int:
        tick = time.time_ns() // 1_000_000
        with self._lock:
            fresh = tick << _RANDOM_BITS | self._random(9)
            # Within one millisecond (or a clock set back) a random step on from the last: ascending, and no easier to guess.
            self._last = fresh if tick > self._last >> _RANDOM_BITS else self._last + 1 + self._random(8)
            return self._last

    def _random(self, size: int) -> int:
        """`size` random bytes as a number. Drawn in blocks: one system call per id took a tenth of a gateway's time."""
        if len(self._pool) < size:
            self._pool = os.urandom(_POOL_BYTES)
        number, self._pool = self._pool[:size], self._pool[size:]
        return int.from_bytes(number, "big")


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
