"""A timer for an event loop that rings within microseconds.

The timers of uvloop count whole milliseconds, and this error would show in latencies, which count from the intended moment.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

# From <time.h> and <sys/timerfd.h>; `time.perf_counter` reads the same clock on Linux.
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NS = 1_000_000_000
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm(Protocol):
    """Rings once for each moment that it is set to."""

    def set(self, at: float) -> None:
        """Ring at this moment, instead of any moment set before; at once if it has passed."""
        ...

    def close(self) -> None: ...


class TimerAlarm:
    """A `timerfd` of the kernel; moments are those of `time.perf_counter`."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        self._fd = fd
        self._loop = loop

    def set(self, at: float) -> None:
        seconds, fraction = divmod(max(at, 1e-9), 1.0)
        # The interval and the first moment, each in seconds and nanoseconds.
        spec = (ctypes.c_long * 4)(0, 0, int(seconds), max(int(fraction * _NS), 1))
        if _libc.timerfd_settime(self._fd, _ABSOLUTE, spec, None) != 0:
            raise _failed("timerfd_settime")

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class LoopAlarm:
    """A timer of the running event loop, as exact as the loop's timers; moments are those of `clock`."""

    def __init__(self, ring: Callable[[], None], clock: Callable[[], float]) -> None:
        self._ring = ring
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        self.close()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._ring)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def open_alarm(ring: Callable[[], None]) -> Alarm:
    """An alarm in the running event loop; moments are those of `time.perf_counter`. Without `timerfd` it is exact to 1 ms."""
    return _timer_alarm(ring) if sys.platform == "linux" else LoopAlarm(ring, time.perf_counter)


def _timer_alarm(ring: Callable[[], None]) -> TimerAlarm:
    fd = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise _failed("timerfd_create")
    loop = asyncio.get_running_loop()

    def rung() -> None:
        try:
            os.read(fd, 8)
        except BlockingIOError:
            return  # the alarm was set to another moment after it had rung
        ring()

    loop.add_reader(fd, rung)
    return TimerAlarm(fd, loop)


def _failed(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
