"""A timer for an event loop that rings within microseconds. uvloop's own count whole milliseconds, and latencies that count
from the intended moment would carry that.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Protocol

# From <time.h> and <sys/timerfd.h>; `time.perf_counter` reads the same clock on Linux.
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NS = 1_000_000_000
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm(Protocol):
    """Rings once for each moment that it was set to."""

    def set(self, at: float) -> None:
        """Ring at that moment instead of any set before; at once if it has passed."""
        ...

    def close(self) -> None: ...


class TimerAlarm:
    """Of the kernel's `timerfd`, moments by `time.perf_counter`."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        self._fd = fd
        self._loop = loop

    def set(self, at: float) -> None:
        seconds, fraction = divmod(max(at, 1e-9), 1.0)
        # Interval and first moment, in seconds and nanoseconds each.
        spec = (ctypes.c_long * 4)(0, 0, int(seconds), max(int(fraction * _NS), 1))
        if _libc.timerfd_settime(self._fd, _ABSOLUTE, spec, None) != 0:
            raise _failed("timerfd_settime")

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


def open_alarm(ring: Callable[[], None]) -> TimerAlarm:
    """One of the running loop."""
    assert time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)"
    fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise _failed("timerfd_create")
    loop = asyncio.get_running_loop()

    def rung() -> None:
        try:
            os.read(fd, 8)
        except BlockingIOError:
            return  # set anew between its ringing and our hearing it
        ring()

    loop.add_reader(fd, rung)
    return TimerAlarm(fd, loop)


def _failed(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
