"""Tests wait by polling until a condition holds; only this module makes a test sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")
_POLL_S = 0.01


def eventually(check: Callable[[], T | Literal[False] | None], timeout_s: float = 30.0) -> T:
    """Return the first true value of `check()`; an AssertionError from `check` means not yet. Fail after `timeout_s`."""
    give_up_at = time.monotonic() + timeout_s
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
        time.sleep(_POLL_S)
