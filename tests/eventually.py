"""Tests wait by polling until a condition holds; only this module makes a test sleep (`tests/unit/test_waits.py`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

T = TypeVar("T")
# A check is often an HTTP request, which costs two processes a few milliseconds: a wait of seconds is looked at less often.
_POLL_S, _POLL_MOST_S, _SHARE = 0.01, 0.05, 0.05


def eventually(check: Callable[[], T | Literal[False] | None], timeout_s: float = 30.0) -> T:
    """Return the first true value of `check()`; an AssertionError from `check` means not yet. Fail after `timeout_s`."""
    wait = _Wait(timeout_s)
    while True:
        found: object
        try:
            if value := check():
                return value
            found = value
        except AssertionError as error:
            found = error
        time.sleep(wait.pause_s(found))


async def eventually_async(check: Callable[[], Awaitable[T | Literal[False] | None]], timeout_s: float = 30.0) -> T:
    """As `eventually`, for a test whose own loop has to go on meanwhile."""
    wait = _Wait(timeout_s)
    while True:
        found: object
        try:
            if value := await check():
                return value
            found = value
        except AssertionError as error:
            found = error
        await asyncio.sleep(wait.pause_s(found))


class _Wait:
    def __init__(self, timeout_s: float) -> None:
        self._began = time.monotonic()
        self._timeout_s = timeout_s

    def pause_s(self, found: object) -> float:
        """Return how long to pause after a look that found this, nothing or an error; raise once the time is over."""
        waited_s = time.monotonic() - self._began
        if waited_s > self._timeout_s:
            raise found if isinstance(found, AssertionError) else AssertionError(f"still {found!r} after {self._timeout_s:g} s")
        return min(max(_POLL_S, _SHARE * waited_s), _POLL_MOST_S)
