"""The model that a run uses, as it is served now: its version, its queue's limit, the slots that take shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from penstock.broker.partitions import share
from penstock.errors import NotFound
from penstock.model_spec import ModelInfo, WorkerInfo
from penstock.rollout import Rollout, followed
from penstock.run import refuse_driven


class ModelLookup(Protocol):
    """The methods of the store that are needed here; `RedisStore` has them."""

    def models(self) -> list[ModelInfo]: ...

    def workers(self) -> list[WorkerInfo]: ...

    def rollouts(self) -> dict[str, Rollout]: ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One version of a model that is served now. `request_headers`, `query`: the parts of a request that its handler gets.

    `max_queue_depth`: of each of its partitions.
    """

    model: str
    version: str
    max_queue_depth: int
    input_schema: dict[str, Any] | None = None
    request_headers: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class Slots:
    """The number of ready slots of a version. `why`: the reason of the others, if none is ready."""

    ready: int = 0
    why: str = ""


def find_served(store: ModelLookup, model: str, *, version: str = "") -> ServedModel:
    """The named version, or the default one. Raises `NotFound` if it is not served, `Conflict` if it has no code of its own."""
    info = find_model(store.models(), store.rollouts(), model)
    version = version or info.default_version
    if version not in {*info.versions, info.default_version}:
        raise NotFound(
            f"model {model!r} no longer has version {version!r}; it has {', '.join(info.versions)}",
            hint="to continue with the current default version: penstock run resume RUN --accept-changes",
        )
    served = info.versions.get(version)
    refuse_driven(model, served)
    schema = served.input_schema if served else None
    most = share(info.limits.max_queue_depth, info.partitions)
    return ServedModel(model, version, most, schema, info.request_headers, info.query, info.partitions)


def find_model(models: Iterable[ModelInfo], rollouts: Mapping[str, Rollout], name: str) -> ModelInfo:
    """The model with its rollout applied. Raises `NotFound`."""
    known = {info.name: info for info in models}
    info = known.get(name)
    current = followed(info, rollouts.get(name)) if info else None
    if current is None:
        raise NotFound(
            f"no model {name!r} is served{suggest_names(name, known)}",
            hint="start it with `penstock up SOURCE`, or name its source: penstock run MODEL INPUT -o OUTPUT --models SOURCE",
        )
    return current


def suggest_names(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the most similar of the `known` names, and all of them."""
    names = sorted(known)
    if not names:
        return "; no model is served at all"
    near = get_close_matches(name, names, n=1)
    return f"; {f'did you mean {near[0]}? ' if near else ''}the served models are {', '.join(names)}"


def slots_of(workers: Iterable[WorkerInfo], model: str, version: str) -> Slots:
    """The slots of one version, as their workers announced them last."""
    slots = [slot for worker in workers for slot in worker.slots if (slot.model, slot.version) == (model, version)]
    ready = sum(slot.state == "ready" for slot in slots)
    failed = [slot.error for slot in slots if slot.state == "failed"]
    if ready or not slots:
        return Slots(ready)
    return Slots(0, f"the model cannot be loaded: {failed[0]}" if failed else "the model is being loaded")
