"""Decides what a worker writes into the registry about itself and its models, and what follows from other entries. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from penstock.broker.partitions import queues_of_model
from penstock.job import queues_of
from penstock.model_spec import ModelInfo, SlotInfo, SlotLocation, VersionInfo, WorkerInfo

LOCATIONS_AGAIN_S = 3_600.0


class LocationsDue:
    """Which locations of slots are to be announced: each once its model is loaded, and again before the store forgets it.

    The timeline of an old job still shows where the job ran.
    """

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._due_at: dict[SlotLocation, float] = {}

    def due(self, slots: Mapping[str, SlotInfo], now: float) -> list[SlotLocation]:
        ready = [
            SlotLocation(name, self._worker, info.device, info.provider)
            for name, info in slots.items()
            if info.state == "ready"
        ]
        return [location for location in ready if now >= self._due_at.get(location, float("-inf"))]

    def mark(self, location: SlotLocation, now: float) -> None:
        self._due_at[location] = now + LOCATIONS_AGAIN_S


def merged(declared: ModelInfo, loaded: dict[str, VersionInfo], known: ModelInfo | None) -> ModelInfo:
    """The model as declared here, with the versions loaded here and those that only other workers know."""
    others = known.versions if known is not None else {}
    return replace(declared, versions={**others, **_unless_known(declared, others), **loaded})


def differing(loaded: Mapping[str, VersionInfo], known: ModelInfo | None) -> list[tuple[str, str, str]]:
    """Versions that were fetched here at another revision than elsewhere: the version, our source, the other one.

    That takes two workers that load it for the first time while its branch moves: later ones take what is announced.
    """
    others = known.versions if known is not None else {}
    pairs = [(version, info.source, (others.get(version) or VersionInfo()).source) for version, info in loaded.items()]
    return [(version, ours, theirs) for version, ours, theirs in pairs if ours and theirs and ours != theirs]


def _unless_known(declared: ModelInfo, others: dict[str, VersionInfo | None]) -> dict[str, VersionInfo | None]:
    return {version: info or others.get(version) for version, info in declared.versions.items()}


def pruned(info: ModelInfo, gone: Set[str]) -> ModelInfo:
    """The model without these versions, with another default if its default was among them."""
    versions = {version: known for version, known in info.versions.items() if version not in gone}
    default = info.default_version if info.default_version in versions else next(iter(versions), info.default_version)
    return replace(info, default_version=default, versions=versions)


def peers(model: str, version: str, *, here: Sequence[SlotInfo], workers: Iterable[WorkerInfo], own_name: str) -> int:
    """How many other slots could run a job of this version. `here` are this worker's slots, the one that asks included."""
    remote = (slot for worker in workers if worker.name != own_name for slot in worker.slots)
    return max(0, _ready(model, version, here) - 1) + _ready(model, version, remote)


def refusals(refused: Mapping[tuple[str, str], str]) -> list[SlotInfo]:
    """Versions that were asked for and have no slot here, shown as failed slots, so that the operator reads why."""
    return [SlotInfo(model, version, "failed", error=why) for (model, version), why in sorted(refused.items())]


def unserved(models: Iterable[ModelInfo], workers: Iterable[WorkerInfo]) -> set[str]:
    """Models of the registry that no live worker serves. Every worker sweeps them, because their jobs must still expire."""
    served = {slot.model for worker in workers for slot in worker.slots}
    return {info.name for info in models} - served


def swept(before: Set[str], own: Set[str], models: Iterable[ModelInfo], workers: Iterable[WorkerInfo]) -> set[str]:
    """The models that a worker sweeps from now on: its `own`, those without a worker, and of those `before` the ones that
    are still known. Of a model that was forgotten no record is left.
    """
    known = list(models)
    return {*own, *unserved(known, workers), *(before & {info.name for info in known})}


def _ready(model: str, version: str, slots: Iterable[SlotInfo]) -> int:
    return sum(slot.model == model and slot.version == version and slot.state == "ready" for slot in slots)


def claimed_from(queues: Sequence[str], slot: str) -> list[str]:
    """The queues that a slot claims from, first its home, which the number at the end of its name decides.

    `slot`: the worker's incarnation, a dot, and the number of the slot there.
    """
    worker, _, number = slot.rpartition(".")
    home = (zlib.crc32(worker.encode()) + int(number)) % len(queues)
    return [*queues[home:], *queues[:home]]


def announced(declared: ModelInfo, known: ModelInfo | None) -> ModelInfo:
    """The model as these settings have it, still with all queues that may hold jobs."""
    if known is None:
        return declared
    placing = known.placing + (declared.partitions != known.partitions)
    return replace(declared, held=max(declared.held, declared.partitions, known.held), placing=placing)


def swept_queues(models: Iterable[str], known: Mapping[str, ModelInfo]) -> list[str]:
    """The queues of these models; for a model that is not announced yet, the queue of its first partition."""
    return [queue for name in models for queue in (queues_of_model(known[name]) if name in known else queues_of(name, 1))]
