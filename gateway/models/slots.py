"""How far a version is from the slots that it is to have, over all workers, and why it has none. Pure."""

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
# How much of a load error a refusal shows: a long sentence, and what to do about it.
_MOST_REASON_CHARS = 600
_MOST_REASONS = 8


class SlotsState(StrEnum):
    """`UNLOADED`: the next job has a slot started. `UNSERVED`: no live worker has to do with the version."""

    REACHED = "reached"
    FAILED = "failed"
    PENDING = "pending"
    UNLOADED = "unloaded"
    UNSERVED = "unserved"


@dataclass(frozen=True, slots=True)
class VersionSlots:
    """The slots of one version as all live workers announced them last: how many are wanted, ready and loading, and why others
    do not run (one reason each).

    `scale`: what an operator asked for, per worker process; None: as the settings say. `is_followed`: every live worker has
    taken up the present rollout of the model. `wakes_in_s`: how long the slot of the next job takes to start, if a worker has
    one started for it; 0: nobody knows yet.
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
        """`REACHED`: exactly the wanted slots are ready, which may be none if the version was scaled to none."""
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
        """Each reason once, as far as a view shows them."""
        return [_shortened(reason) for reason in list(dict.fromkeys(self.failed))[:_MOST_REASONS]]

    @property
    def why(self) -> str:
        """Why none is ready: the version is scaled to none, the load error, else that it is loading or served by nobody."""
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
    """`scale` is the number that an operator set, if one did, and `mark` names the present rollout of the model."""
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
    """What each worker announces of the version whose slots follow its work there."""
    infos = (worker.scaling.get(model, {}).get(version) for worker in workers)
    return [info for info in infos if info is not None]


def _slots(worker: WorkerInfo, model: str, version: str) -> list[SlotInfo]:
    return [slot for slot in worker.slots if (slot.model, slot.version) == (model, version)]


def _wanted(worker: WorkerInfo, model: str, version: str) -> int:
    if worker.wanted is None:
        return len(_slots(worker, model, version))
    return worker.wanted.get(model, {}).get(version, 0)


def _shortened(reason: str) -> str:
    """The text without its middle: a load error begins with what is wrong and ends with what to do."""
    if len(reason) <= _MOST_REASON_CHARS:
        return reason
    half = _MOST_REASON_CHARS // 2
    return f"{reason[:half].rstrip()} … {reason[-half:].lstrip()}"


def why_unserved(workers: Sequence[WorkerInfo], model: str, version: VersionEntry) -> str:
    """Why a version has no ready slot."""
    return PAUSED if version.is_paused else slots_of(workers, model, version.name, scale=version.scale).why
