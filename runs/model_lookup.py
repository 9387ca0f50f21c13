"""What serves a model now: the version a run is pinned to, its queue's limit, the processes that take shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from penstock.errors import NotFound
from penstock.model_spec import ModelInfo, WorkerInfo
from penstock.rollout import Rollout, followed


class ModelLookup(Protocol):
    """What is asked of the store; `RedisStore` answers it."""

    def models(self) -> list[ModelInfo]: ...

    def workers(self) -> list[WorkerInfo]: ...

    def rollouts(self) -> dict[str, Rollout]: ...


@dataclass(frozen=True, slots=True)
class Served:
    """One version of a model as it can be used now."""

    model: str
    version: str
    max_queue_depth: int
    input_schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Slots:
    """Processes that can run a version now; with none `why` says what keeps those that should."""

    ready: int = 0
    why: str = ""


def served(registry: ModelLookup, model: str, *, version: str = "") -> Served:
    """The version named, else the default one. Raises `NotFound` for a model or version that nobody serves."""
    info = chosen(registry.models(), registry.rollouts(), model)
    version = version or info.default_version
    if version not in {*info.versions, info.default_version}:
        raise NotFound(
            f"model {model!r} has no version {version!r} any more; it has {', '.join(info.versions)}",
            hint="`penstock run resume --accept-changes` goes on with the version in force",
        )
    told = info.versions.get(version)
    return Served(model, version, info.limits.max_queue_depth, told.input_schema if told else None)


def chosen(models: Iterable[ModelInfo], rollouts: Mapping[str, Rollout], name: str) -> ModelInfo:
    """The model as it is served; raises `NotFound`."""
    known = {info.name: info for info in models}
    info = known.get(name)
    found = followed(info, rollouts.get(name)) if info else None
    if found is None:
        raise NotFound(
            f"no model {name!r} is served{meant(name, known)}",
            hint="start it with `penstock up SOURCE`, or let the run do so: penstock run MODEL INPUT -o OUTPUT --models SOURCE",
        )
    return found


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a sentence on a name that is not among those `known`: the nearest one, and all."""
    names = sorted(known)
    if not names:
        return "; no model is"
    near = get_close_matches(name, names, n=1)
    return f"; {f'did you mean {near[0]}? ' if near else ''}served are {', '.join(names)}"


def slots_of(workers: Iterable[WorkerInfo], model: str, version: str) -> Slots:
    """Those of one version, as their workers announced them last."""
    found = [slot for worker in workers for slot in worker.slots if (slot.model, slot.version) == (model, version)]
    ready = sum(slot.state == "ready" for slot in found)
    failed = [slot.error for slot in found if slot.state == "failed"]
    if ready or not found:
        return Slots(ready)
    return Slots(0, f"the model cannot be loaded: {failed[0]}" if failed else "the model is being loaded")
