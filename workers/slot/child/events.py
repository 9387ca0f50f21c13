"""What the manager of a child reports to its slot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.handlers.metrics.samples import MetricSample
from penstock.workers.ipc.frames import BatchDone, ItemReports, Ready
from penstock.workers.slot.batch import Batch


class Cause(StrEnum):
    """Why a batch did not come back."""

    CRASHED = "crashed"  # the child crashed, and one of the batch's items may have caused it
    TIMED_OUT = "timeout"  # the batch ran past its limit and has one item, which certainly caused it
    UNSTARTED = "unstarted"  # the batch had no part in the child's end


@dataclass(frozen=True, slots=True)
class ChildReady:
    ready: Ready


@dataclass(frozen=True, slots=True)
class ItemsSaid:
    """Items of a running batch reported."""

    batch: Batch
    said: ItemReports


@dataclass(frozen=True, slots=True)
class BatchRan:
    batch: Batch
    done: BatchDone


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """A batch that has its endings: those of a driven model name outputs that lie in blobs of other jobs."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class BatchLost:
    batch: Batch
    cause: Cause
    how: str


@dataclass(frozen=True, slots=True)
class ChildUnloadable:
    error: str


@dataclass(frozen=True, slots=True)
class ChildExited:
    """`why`: `crashed`, `timeout` (killed by us), `recycled` (worn), `device` (its device failed) or `unloadable`."""

    why: str


@dataclass(frozen=True, slots=True)
class HandlerMeasured:
    """`samples`: what the handler counted since the last such event."""

    samples: list[MetricSample]


Event = ChildReady | ItemsSaid | BatchRan | BatchEnded | BatchLost | ChildUnloadable | ChildExited | HandlerMeasured
