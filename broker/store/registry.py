"""What workers announce of themselves and their models, so that gateways need not load any model code. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from penstock.model_spec import ModelInfo, WorkerInfo
from penstock.rollout import Rollout

MODELS_KEY = "ps:models"
WORKERS_KEY = "ps:workers"
STORE_KEY = "ps:store"
ROLLOUTS_KEY = "ps:rollouts"
PROFILES_KEY = "ps:profiles"
# As long as results are kept by default, and a day more.
PLACE_TTL_S = 2 * 86_400


class _RegistryEntry(msgspec.Struct, array_like=True):
    """`expires_at` is Unix seconds by the worker's clock: an entry that was not renewed is ignored, and later overwritten."""

    expires_at: float
    info: WorkerInfo


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """A rollout, and its text in the store: what a change of it must find unchanged."""

    rollout: Rollout = field(default_factory=Rollout)
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """What the registry says of a model, and its text there, as above; None and empty where it says nothing."""

    info: ModelInfo | None = None
    text: bytes = b""


def stored_models(entries: Mapping[bytes, bytes]) -> dict[str, StoredModel]:
    return {name.decode(): StoredModel(msgspec.json.decode(text, type=ModelInfo), text) for name, text in entries.items()}


def stored_rollouts(entries: Mapping[bytes, bytes]) -> dict[str, StoredRollout]:
    return {name.decode(): StoredRollout(msgspec.json.decode(text, type=Rollout), text) for name, text in entries.items()}


def swap_args(model: str, found: StoredRollout | StoredModel, wanted: Rollout | ModelInfo | None) -> list[bytes | str]:
    """The arguments of `swap`; with None, or a rollout that changes nothing, no entry is left."""
    return [model, found.text, b"" if wanted in (None, Rollout()) else msgspec.json.encode(wanted)]


def place_key(slot: str) -> str:
    return f"ps:slot:{slot}"


def slot_of(incarnation: str) -> str:
    """The slot of an incarnation, which is a slot's name and a number."""
    return incarnation.rpartition(".")[0]


def worker_entry(info: WorkerInfo, now: float, ttl_s: float) -> bytes:
    return msgspec.json.encode(_RegistryEntry(now + ttl_s, replace(info, seen_at=now)))


def fresh_workers(entries: Mapping[bytes, bytes], now: float) -> list[WorkerInfo]:
    decoded = (msgspec.json.decode(entry, type=_RegistryEntry) for entry in entries.values())
    return [entry.info for entry in decoded if entry.expires_at > now]
