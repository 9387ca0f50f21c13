"""What a worker tells the registry of itself and of its models. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from penstock.model_spec import ModelInfo, SlotInfo, SlotPlace, VersionInfo, WorkerInfo

PLACES_AGAIN_S = 3_600.0


class Places:
    """Where this worker's slots are, to be told once each has loaded its model, and again before the store forgets it: an old
    job still tells where it ran.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._due_at: dict[SlotPlace, float] = {}

    def due(self, slots: Mapping[str, SlotInfo], now: float) -> list[SlotPlace]:
        ready = [
            SlotPlace(name, self._worker, info.device, info.provider) for name, info in slots.items() if info.state == "ready"
        ]
        return [place for place in ready if now >= self._due_at.get(place, float("-inf"))]

    def told(self, place: SlotPlace, now: float) -> None:
        self._due_at[place] = now + PLACES_AGAIN_S


def merged(declared: ModelInfo, loaded: dict[str, VersionInfo], known: ModelInfo | None) -> ModelInfo:
    """The model as declared here, with what was loaded here, and the versions that only other workers know."""
    others = known.versions if known is not None else {}
    return replace(declared, versions={**others, **_unless_known(declared, others), **loaded})


def _unless_known(declared: ModelInfo, others: dict[str, VersionInfo | None]) -> dict[str, VersionInfo | None]:
    return {version: info or others.get(version) for version, info in declared.versions.items()}


def pruned(info: ModelInfo, gone: Set[str]) -> ModelInfo:
    """The model without these versions."""
    versions = {version: known for version, known in info.versions.items() if version not in gone}
    default = info.default_version if info.default_version in versions else next(iter(versions), info.default_version)
    return replace(info, default_version=default, versions=versions)


def peers(model: str, version: str, *, here: Sequence[SlotInfo], workers: Iterable[WorkerInfo], own_name: str) -> int:
    """How many other slots could run a job of this version; `here` includes the slot that asks."""
    remote = (slot for worker in workers if worker.name != own_name for slot in worker.slots)
    return max(0, _ready(model, version, here) - 1) + _ready(model, version, remote)


def refusals(refused: Mapping[tuple[str, str], str]) -> list[SlotInfo]:
    """Versions that were asked for and have no slot here, as slots that failed, so that whoever asked reads why."""
    return [SlotInfo(model, version, "failed", error=why) for (model, version), why in sorted(refused.items())]


def unserved(models: Iterable[ModelInfo], workers: Iterable[WorkerInfo]) -> set[str]:
    """Models of the registry that no live worker has: somebody must still end their jobs when they are due."""
    served = {slot.model for worker in workers for slot in worker.slots}
    return {info.name for info in models} - served


def _ready(model: str, version: str, slots: Iterable[SlotInfo]) -> int:
    return sum(slot.model == model and slot.version == version and slot.state == "ready" for slot in slots)
