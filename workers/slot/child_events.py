"""What a slot hears of its child."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.workers.ipc.frames import Done, Ready
from penstock.workers.slot.batcher import Held


class Cause(StrEnum):
    """Why a batch did not come back."""

    CRASHED = "crashed"  # its items may have done it
    TIMED_OUT = "timeout"  # it ran past the limit, and it is one item: certain
    UNSTARTED = "unstarted"  # it had no part in it


@dataclass(frozen=True, slots=True)
class Up:
    ready: Ready


@dataclass(frozen=True, slots=True)
class Ran:
    held: Held
    done: Done


@dataclass(frozen=True, slots=True)
class Lost:
    held: Held
    cause: Cause
    how: str


@dataclass(frozen=True, slots=True)
class Unloadable:
    error: str


@dataclass(frozen=True, slots=True)
class Gone:
    """The child is: `crashed`, `timeout` (killed by us), `recycled` (worn), `device` (its device failed) or `unloadable`."""

    why: str


Event = Up | Ran | Lost | Unloadable | Gone
