"""What a slot hears of its child."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.workers.ipc.frames import BatchDone, Ready
from penstock.workers.slot.batcher import Batch


class Cause(StrEnum):
    """Why a batch did not come back."""

    CRASHED = "crashed"  # its items may have done it
    TIMED_OUT = "timeout"  # it ran past the limit, and it is one item: certain
    UNSTARTED = "unstarted"  # it had no part in it


@dataclass(frozen=True, slots=True)
class ChildReady:
    ready: Ready


@dataclass(frozen=True, slots=True)
class BatchRan:
    held: Batch
    done: BatchDone


@dataclass(frozen=True, slots=True)
class BatchLost:
    held: Batch
    cause: Cause
    how: str


@dataclass(frozen=True, slots=True)
class ChildUnloadable:
    error: str


@dataclass(frozen=True, slots=True)
class ChildExited:
    """The child is: `crashed`, `timeout` (killed by us), `recycled` (worn), `device` (its device failed) or `unloadable`."""

    why: str


Event = ChildReady | BatchRan | BatchLost | ChildUnloadable | ChildExited
