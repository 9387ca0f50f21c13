"""The requests of drivers to the store of runs, and its answers: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.broker.contract import TakeStatus
from penstock.run import Run, RunCounts, RunState

KEEP_S = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class CreatedRun:
    """`new` is False if the id was taken: `run` is then the earlier run, whatever its owner and its specification."""

    run: Run
    new: bool


@dataclass(frozen=True, slots=True)
class RunPage:
    """`next_after`: the id behind which the list goes on, even if no run on this page was asked for; empty at its end."""

    runs: list[Run]
    next_after: str = ""


@dataclass(frozen=True, slots=True)
class TakenRun:
    """`run` is the record as it is now, None if missing. With HELD the record names the driver that has the run."""

    status: TakeStatus
    run: Run | None


@dataclass(frozen=True, slots=True)
class RunChange:
    """What a driver reports of its run; fields that are None stay as they are. `details` replaces all earlier details."""

    state: RunState | None = None
    counts: RunCounts | None = None
    version: str | None = None
    rows_per_s: float | None = None
    busy: float | None = None
    error_code: str | None = None
    error_message: str | None = None
    details: dict[str, Any] | None = None
