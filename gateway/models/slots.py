"""The wanted and ready slots of a version over all workers, and why it has none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.model_spec import ScalingInfo, SlotInfo, WorkerInfo

if TYPE_CHECKING:
    from penstock.gateway.models.registry import VersionEntry

STILL_LOADING = "still loading"
NOT_LOADED = "could not be loaded"
UNLOADED = "unloaded; the next job has it loaded"
SCALED_TO_NONE = "scaled to no slots"
PAUSED = "paused; its jobs wait until it is resumed"
# The part of a load error that a refusal shows: a long sentence and a hint.
_MOST_REASON_CHARS = 600
_MOST_REASONS = 8


class SlotsState(StrEnum):
    """`UNLOADED`: the next job starts a slot. `UNSERVED`: no live worker knows the version."""

    REACHED = "reached"
    FAILED = "failed"
    PENDING = "pending"
    UNLOADED = "unloaded"
    UNSERVED = "unserved"


@dataclass(frozen=True, slots=True)
class VersionSlots:
    """The slots of one version in the last announcements of all live workers: wanted, ready, loading, and the reasons of
    the others, one each.

    `scale`: the number per worker process that an operator set; None: as the settings say. `is_followed`: every live worker
    has applied the current rollout of the model. `wakes_in_s`: the start time of the next job's slot, if a worker starts
    one on demand; 0: unknown.
    """

    wanted: int = 0
    ready: int = 0
    loading: int = 0
    failed: tuple[str, ...] = ()
    scale: int | None = None
    is_followed: bool = True
    wakes_in_s: float | None = None

    @property
    def state(self) -> SlotsState:
        """`REACHED`: exactly the wanted slots are ready, also if none is wanted."""
        if not self.is_followed or self.loading:
            return SlotsState.PENDING
        if self.ready == self.wanted and (self.wanted or self.scale == 0):
            return SlotsState.REACHED
        if self.failed:
            return SlotsState.FAILED
        if self.wakes_in_s is not None and not self.wanted:
            return SlotsState.UNLOADED
        return SlotsState.PENDING if self.wanted or self.ready else SlotsState.UNSERVED

    @property
    def reasons(self) -> list[str]:
        """The distinct reasons, as many as a view shows."""
        return [_shortened(reason) for reason in list(dict.fromkeys(self.failed))[:_MOST_REASONS]]

    @property
    def why(self) -> str:
        """Why no slot is ready: the version is scaled to none, failed to load, is loading, or has no worker."""
        if self.scale == 0:
            return SCALED_TO_NONE
        if self.failed:
            return f"{NOT_LOADED}: {_shortened(self.failed[0]) or 'the log of its worker says why'}"
        if self.loading or self.wakes_in_s is None:
            return STILL_LOADING if self.loading else "no live worker serves it"
        return UNLOADED + (f", in about {self.wakes_in_s:.3g} s" if self.wakes_in_s else "")


def slots_of(
    workers: Sequence[WorkerInfo], model: str, version: str, *, scale: int | None = None, mark: str = ""
) -> VersionSlots:
    """`scale`: the number that an operator set, if any. `mark` identifies the current rollout of the model."""
    slots = [slot for worker in workers for slot in _slots(worker, model, version)]
    return VersionSlots(
        wanted=sum(_wanted(worker, model, version) for worker in workers),
        ready=sum(slot.state == "ready" for slot in slots),
        loading=sum(slot.state == "loading" for slot in slots),
        failed=tuple(slot.error for slot in slots if slot.state == "failed"),
        scale=scale,
        wakes_in_s=min((info.start_s for info in scaling_of(workers, model, version)), default=None),
        is_followed=all(worker.wanted is None or worker.followed.get(model, "") == mark for worker in workers),
    )


def scaling_of(workers: Sequence[WorkerInfo], model: str, version: str) -> list[ScalingInfo]:
    """The announcements of the workers that scale the version's slots by its work."""
    infos = (worker.scaling.get(model, {}).get(version) for worker in workers)
    return [info for info in infos if info is not None]


def _slots(worker: WorkerInfo, model: str, version: str) -> list[SlotInfo]:
    return [slot for slot in worker.slots if (slot.model, slot.version) == (model, version)]


def _wanted(worker: WorkerInfo, model: str, version: str) -> int:
    if worker.wanted is None:
        return len(_slots(worker, model, version))
    return worker.wanted.get(model, {}).get(version, 0)


def _shortened(reason: str) -> str:
    """The text without its middle: a load error begins with the fault and ends with the hint."""
    if len(reason) <= _MOST_REASON_CHARS:
        return reason
    half = _MOST_REASON_CHARS // 2
    return f"{reason[:half].rstrip()} … {reason[-half:].lstrip()}"


def why_unserved(workers: Sequence[WorkerInfo], model: str, version: VersionEntry) -> str:
    """Why a version has no ready slot."""
    return PAUSED if version.is_paused else slots_of(workers, model, version.name, scale=version.scale).why
