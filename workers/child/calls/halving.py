"""Halves a batch whose stage raised, until the items at fault are alone. Pure but for the handler.

The stage therefore sees the same values again, and must not change them before it raises. An error of the device that would
repeat for every item is raised as `DeviceFault` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.handlers.contract import Failure, failure_of
from penstock.handlers.device_errors import is_broken_device, is_fatal_device_error, is_out_of_memory

# Where a part of the call begins among its items, and how many it has.
OnPart = Callable[[int, int], None]


class DeviceFault(Exception):
    """The device, or this process's access to it, is gone: every later call would fail. `broken`: no input can cause that."""

    def __init__(self, message: str, *, broken: bool) -> None:
        super().__init__(message)
        self.message = message
        self.broken = broken


def raise_if_fatal(error: Exception) -> None:
    """Raise `DeviceFault` if every later call of the process would fail like this one."""
    # D26: halving would then fail the whole batch.
    if is_fatal_device_error(error):
        raise DeviceFault(failure_of(error).message, broken=is_broken_device(error)) from error


@dataclass(frozen=True, slots=True)
class Refusal:
    """The facts of an exception without the exception: its traceback would keep the batch's memory while the halves run."""

    failure: Failure
    out_of_memory: bool


def refusal_of(error: Exception) -> Refusal:
    """Raises `DeviceFault` if every later call would fail like this one."""
    raise_if_fatal(error)
    return Refusal(failure_of(error), is_out_of_memory(error))


class Halving:
    """Finds the items at fault: at most 2n - 1 calls of `attempt`, 7 for one bad item in 8."""

    def __init__(self, attempt: Callable[[list[Any]], list[Any] | Refusal], on_part: OnPart | None = None) -> None:
        self._attempt = attempt
        self._on_part = on_part
        self._exhausted = False
        self._largest_ok = 0

    def halve(self, values: list[Any], refused: Refusal, *, first: int = 0) -> list[Any]:
        """One place per value: what the stage made of it, or a `Failure`. `first`: where the values begin in the call."""
        self._exhausted = self._exhausted or refused.out_of_memory
        if len(values) == 1:
            return [refused.failure]
        middle = len(values) // 2
        return self._run(values[:middle], first) + self._run(values[middle:], first + middle)

    @property
    def largest_ok(self) -> int | None:
        """If memory ran out, the largest part that passed; 0 if no item did."""
        return self._largest_ok if self._exhausted else None

    def _run(self, values: list[Any], first: int) -> list[Any]:
        if self._on_part:
            self._on_part(first, len(values))
        result = self._attempt(values)
        if isinstance(result, Refusal):
            return self.halve(values, result, first=first)
        self._largest_ok = max(self._largest_ok, len(values))
        return result
