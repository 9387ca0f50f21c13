"""Tests wait by polling until a condition holds; only this module makes a test sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")
# A check is often an HTTP request, which costs two processes a few milliseconds: a wait of seconds is looked at less often.
_POLL_S, _POLL_MOST_S, _SHARE = 0.01, 0.05, 0.05


def eventually(check: Callable[[], T | Literal[False] | None], timeout_s: float = 30.0) -> T:
    """Return the first true value of `check()`; an AssertionError from `check` means not yet. Fail after `timeout_s`."""
    began = time.monotonic()
    give_up_at = began + timeout_s
    while True:
        try:
            value = check()
        except AssertionError:
            if time.monotonic() > give_up_at:
                raise
        else:
            if value:
                return value
            if time.monotonic() > give_up_at:
                raise AssertionError(f"still {value!r} after {timeout_s:g} s")
        time.sleep(min(max(_POLL_S, _SHARE * (time.monotonic() - began)), _POLL_MOST_S))
