"""One call of a handler's stage: its outputs are checked, and a batch for which it raises is halved. Pure.

Halving goes on until only the items at fault fail. The stage may therefore see the same values again, and must not change them
before it raises. An error of the device that would repeat for every item is raised as `DeviceFault` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.errors import HandlerContractError
from penstock.handlers.contract import Failure, failure_of
from penstock.handlers.device_errors import is_broken_device, is_fatal_device_error, is_out_of_memory
from penstock.handlers.loaded import Stage


class DeviceFault(Exception):
    """The device, or this process's access to it, is gone: every later call would fail. `broken`: no input can cause that."""

    def __init__(self, message: str, *, broken: bool) -> None:
        super().__init__(message)
        self.message = message
        self.broken = broken


def call_stage(stage: Stage, name: str, values: list[Any]) -> tuple[list[Any], int | None]:
    """One output or `Failure` per value and, if memory ran out, the size of the largest part that passed (0: no item did)."""
    result = _attempt(stage, name, values)
    if not isinstance(result, _Refusal):
        return result, None
    search = _Search(stage, name)
    return search.halve(values, result), search.largest_ok


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What a call raised, without the exception: its traceback would keep the batch's memory while the halves run."""

    failure: Failure
    out_of_memory: bool


class _Search:
    """Halves a batch whose stage raised until the items at fault are alone: at most 2n - 1 calls, 7 for one bad item in 8."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._exhausted = False
        self._largest_ok = 0

    def halve(self, values: list[Any], refused: _Refusal) -> list[Any]:
        """One place per value: what the stage made of it, or a `Failure`."""
        self._exhausted = self._exhausted or refused.out_of_memory
        if len(values) == 1:
            return [refused.failure]
        middle = len(values) // 2
        return self._run(values[:middle]) + self._run(values[middle:])

    @property
    def largest_ok(self) -> int | None:
        """If memory ran out, the largest part that passed; 0 if no item did."""
        return self._largest_ok if self._exhausted else None

    def _run(self, values: list[Any]) -> list[Any]:
        result = _attempt(self._stage, self._name, values)
        if isinstance(result, _Refusal):
            return self.halve(values, result)
        self._largest_ok = max(self._largest_ok, len(values))
        return result


def _attempt(stage: Stage, name: str, values: list[Any]) -> list[Any] | _Refusal:
    try:
        return _checked(stage(values), len(values), name)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        raise_if_fatal(error)
        return _Refusal(failure_of(error), is_out_of_memory(error))


def raise_if_fatal(error: Exception) -> None:
    """Raise `DeviceFault` if every later call of the process would fail like this one."""
    # D26: halving would then fail the whole batch.
    if is_fatal_device_error(error):
        raise DeviceFault(failure_of(error).message, broken=is_broken_device(error)) from error


def _checked(outputs: Any, count: int, name: str) -> list[Any]:
    """The stage's outputs as a list of `count`; raises `HandlerContractError` for anything else."""
    listed = outputs if type(outputs) is list else _listed(outputs, name)
    if len(listed) != count:
        raise HandlerContractError(
            f"{name} got {count} inputs and returned {len(listed)} outputs; return one per input, a Failure in a bad place"
        )
    return listed


def _listed(outputs: Any, name: str) -> list[Any]:
    if isinstance(outputs, (str, bytes, dict, Failure)) or not hasattr(outputs, "__iter__"):
        raise HandlerContractError(f"{name} returned {type(outputs).__name__}; return a list with one output per input")
    return list(outputs)
