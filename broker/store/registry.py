"""What workers and operators publish besides jobs: models, workers, slots, rollouts and profile requests. Pure.

Gateways read all of it here, so that none of them needs to load model code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec
import structlog

from penstock.access import Key
from penstock.broker.store.ops import Command, Operation, digest, ms, prefix
from penstock.model_spec import ModelInfo, ProfileWish, SlotLocation, WorkerInfo
from penstock.rollout import Rollout

log = structlog.get_logger(__name__)

# In one slot of a cluster, because functions use several of them together. As in `lib.lua`.
REGISTRY = "ps:{registry}:"
MODELS_KEY = f"{REGISTRY}models"
WORKERS_KEY = f"{REGISTRY}workers"
ROLLOUTS_KEY = f"{REGISTRY}rollouts"
PROFILES_KEY = f"{REGISTRY}profiles"
# worker -> when (Unix seconds) an operator had it take no more jobs.
DRAINS_KEY = f"{REGISTRY}drains"
# model -> when (Unix ms) a caller was last refused because no slot of it was ready.
REFUSED_KEY = f"{REGISTRY}refused"
STORE_KEY = "ps:store"
# Not a prefix of any model's keys, and workers have no rights on it.
KEYS_PREFIX = "pk:{keys}:"
# One reply can hold this many without delaying the store.
MOST_KEYS = 10_000
_EDITION = b"#"
# As long as results are kept by default, and a day more.
LOCATION_TTL_S = 2 * 86_400
# Of versions, devices, runtimes and threads of one model together.
MOST_KINDS = 64
# In tables of versions that were loaded at run time these settings keep the names by which the release before reads them.
_IN_STORE = {name: name.replace("slots", "workers") for name in ("slots", "min_slots", "max_slots", "slots_per_device")}
_IN_SETTINGS = {stored: name for name, stored in _IN_STORE.items()}
# These settings were removed; tables of an earlier release may have them.
_GONE = frozenset({"max_retry_delay_s", "profile_every"})


class _RegistryEntry(msgspec.Struct, array_like=True):
    """As `announce` in `presence.lua` writes it. Moments are Unix seconds by Redis' clock, because the clocks of hosts differ.
    An entry that was not renewed is ignored, and later forgotten.
    """

    expires_at: float
    info: WorkerInfo
    seen_at: float


class KeptTimes(msgspec.Struct, frozen=True, array_like=True):
    """How long batches took, by size, in seconds; kept at this moment of the store's clock. `start_s`: how long a slot took
    until it was ready, `memory_bytes`: what it takes on its device; 0 if not known.
    """

    run_s: dict[int, float]
    at: float
    start_s: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key that was made at run time, when (Unix seconds) and by whose key, and its exact text in the store."""

    key: Key
    made_at: float
    made_by: str = ""
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class KeySpending:
    """What one gateway process asked of one key's rate since its last call: tokens let through, and tokens asked for."""

    key: str
    rate_per_s: float
    burst: float
    spent: float
    offered: float


@dataclass(frozen=True, slots=True)
class KeyLevels:
    """What the store says of the keys: another `edition` after each change of one, the gateway processes of the last moment,
    its clock's `now`, and for each key asked about, in order, its level in tokens and the demand for it over all gateways.
    """

    edition: int
    gateways: int
    now: float
    levels: Sequence[tuple[float, float]]


# Made while one thread loads this module. D106: docs/design/house.md
_ENTRY, _KEPT = msgspec.json.Decoder(_RegistryEntry), msgspec.json.Decoder(KeptTimes)
_MODEL, _ROLLOUT = msgspec.json.Decoder(ModelInfo), msgspec.json.Decoder(Rollout)
_STORED_KEY = msgspec.json.Decoder(StoredKey)
_OF_KEYS = frozenset(own.name for own in fields(Key))
_LOCATION, _WISH = msgspec.json.Decoder(SlotLocation), msgspec.json.Decoder(ProfileWish)


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """A rollout and its exact text in the store, which a change of the rollout must find unchanged."""

    rollout: Rollout = field(default_factory=Rollout)
    text: bytes = b""

    @property
    def mark(self) -> str:
        """Names this state of the rollout, so that a worker can say that it has taken it up; empty if there is none."""
        return digest("", self.text.decode())


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model's entry and its exact text in the store; None and empty for a model without an entry."""

    info: ModelInfo | None = None
    text: bytes = b""


def models() -> Command[dict[str, StoredModel]]:
    """What workers and gateways announced, by model."""
    return Command(("HGETALL", MODELS_KEY), _models)


def announce_model(info: ModelInfo) -> Command[None]:
    return Command(("HSET", MODELS_KEY, info.name, msgspec.json.encode(info)), _nothing)


def swap_model(name: str, stored: StoredModel, wanted: ModelInfo | None) -> Operation[bool]:
    """Replace `stored` by `wanted`, or remove the entry if `wanted` is None; False if another process changed it first.

    The model's jobs stay.
    """
    text = b"" if wanted is None else msgspec.json.encode(wanted)
    return Operation("swap", MODELS_KEY, [name, stored.text, text], bool)


def identity(new_name: str) -> Operation[str]:
    """The store's name, which is `new_name` if it had none."""
    return Operation("identity", STORE_KEY, [new_name], _name)


def clock() -> Command[float]:
    """The store's clock, as Unix seconds. Two processes compare moments of this clock only."""
    return Command(("TIME",), _unix_seconds)


def worker_entries() -> Command[list[bytes]]:
    return Command(("HGETALL", WORKERS_KEY), lambda entries: list(entries.values()))


def fresh_workers(entries: Iterable[bytes], now: float) -> list[WorkerInfo]:
    """The workers whose entries had not expired at `now`, a moment of the store's clock."""
    decoded = (_ENTRY.decode(entry) for entry in entries)
    return [replace(one.info, seen_at=one.seen_at) for one in decoded if one.expires_at > now]


def announce_worker(info: WorkerInfo, *, ttl_s: float = 20.0) -> Operation[int]:
    """The registry's edition: another number once its models or what its workers serve have changed."""
    return Operation("announce", WORKERS_KEY, [info.name, ms(ttl_s), msgspec.json.encode(info), _served(info)], int)


def _served(info: WorkerInfo) -> str:
    """A digest of what others look for in a worker's entry; how busy it is changes with every beat."""
    slots = sorted((slot.model, slot.version, slot.state) for slot in info.slots)
    scaling = [(model, name, one.slots, one.most) for model, versions in info.scaling.items() for name, one in versions.items()]
    return digest("", msgspec.json.encode([slots, sorted(info.declared.items()), sorted(scaling)]).decode())


def withdraw_worker(name: str) -> Operation[None]:
    return Operation("withdraw_worker", WORKERS_KEY, [name], _nothing)


def announce_location(location: SlotLocation) -> Operation[None]:
    return Operation("place", _location_key(location.slot), [ms(LOCATION_TTL_S), msgspec.json.encode(location)], _nothing)


def location_of(incarnation: str) -> Command[SlotLocation | None]:
    """Where the slot of an incarnation runs or ran. The incarnation's name is the slot's name, a dot and a number."""
    return Command(("GET", _location_key(incarnation.rpartition(".")[0])), _location)


def rollouts() -> Command[dict[str, StoredRollout]]:
    """The operators' changes, by model."""
    return Command(("HGETALL", ROLLOUTS_KEY), _rollouts)


def swap_rollout(model: str, stored: StoredRollout, wanted: Rollout) -> Operation[bool]:
    """Replace `stored` by `wanted`; False if another process changed it first. With a rollout that changes nothing, no entry is
    left.
    """
    text = b"" if wanted == Rollout() else msgspec.json.encode(_renamed(wanted, _IN_STORE))
    return Operation("swap", ROLLOUTS_KEY, [model, stored.text, text], bool)


def drains() -> Command[dict[str, bytes]]:
    """The workers that are to take no jobs, each with the text of its entry."""
    return Command(("HGETALL", DRAINS_KEY), lambda entries: {name.decode(): text for name, text in entries.items()})


def swap_drain(worker: str, stored: bytes, at: float | None) -> Operation[bool]:
    """`at` by the store's clock; with None, the worker takes jobs again."""
    return Operation("swap", DRAINS_KEY, [worker, stored, b"" if at is None else f"{at:.3f}"], bool)


def stored_keys() -> Command[dict[str, StoredKey]]:
    """The stored keys, without unreadable ones, which open nothing."""
    return Command(("HGETALL", f"{KEYS_PREFIX}known"), _stored_keys)


def put_key(stored: StoredKey | None, wanted: StoredKey) -> Operation[int]:
    """1 if `wanted` is kept, 0 if another process changed the key first, -1 if there are `MOST_KEYS`."""
    text = msgspec.json.encode(_flat(wanted))
    return Operation("change_key", KEYS_PREFIX, [wanted.key.id, stored.text if stored else b"", text, MOST_KEYS], int)


def remove_key(stored: StoredKey) -> Operation[int]:
    return Operation("change_key", KEYS_PREFIX, [stored.key.id, stored.text, b"", MOST_KEYS], int)


def spend(gateway: str, spendings: Sequence[KeySpending], *, ttl_s: float) -> Operation[KeyLevels]:
    args: list[Any] = [gateway, ms(ttl_s)]
    for one in spendings:
        args += [one.key, f"{one.rate_per_s:.6f}", f"{one.burst:.3f}", f"{one.spent:.3f}", f"{one.offered:.3f}"]
    return Operation("spend", KEYS_PREFIX, args, _levels)


def profile_wishes() -> Command[dict[str, ProfileWish]]:
    """The last profile request of each model, also when its time is over."""
    return Command(("HGETALL", PROFILES_KEY), _profile_wishes)


def profile_wish(model: str) -> Command[ProfileWish | None]:
    return Command(("HGET", PROFILES_KEY, model), _profile_wish)


def wish_profile(model: str, wish: ProfileWish) -> Command[None]:
    """Replace the model's last profile request; its workers see the new one at their next beat."""
    return Command(("HSET", PROFILES_KEY, model, msgspec.json.encode(wish)), _nothing)


def drop_wish(model: str, wish: ProfileWish) -> Operation[bool]:
    """Forget this request, unless another one has replaced it."""
    return Operation("swap", PROFILES_KEY, [model, msgspec.json.encode(wish), b""], bool)


def note_refused(model: str, now: float) -> Command[None]:
    """`now` is by the store's clock."""
    return Command(("HSET", REFUSED_KEY, model, int(now * 1000)), _nothing)


def refused() -> Command[dict[str, float]]:
    """By model, when a caller was last refused because no slot of it was ready (Unix seconds)."""
    return Command(("HGETALL", REFUSED_KEY), lambda entries: {name.decode(): int(at) / 1000 for name, at in entries.items()})


def learned_times(model: str) -> Command[dict[str, KeptTimes]]:
    """By what they hold for."""
    return Command(("HGETALL", _learned_key(model)), _learned)


def keep_learned_times(model: str, kind: str, times: KeptTimes) -> Operation[None]:
    return Operation("keep_times", _learned_key(model), [kind, msgspec.json.encode(times)], _nothing)


def forget_learned_times(model: str, kinds: Sequence[str]) -> Command[None]:
    return Command(("HDEL", _learned_key(model), *kinds), _nothing)


def outdated(kept: Mapping[str, KeptTimes]) -> list[str]:
    """The entries to delete so that at most `MOST_KINDS` stay: with a version per deploy they would grow for ever."""
    return sorted(kept, key=lambda kind: kept[kind].at)[: max(0, len(kept) - MOST_KINDS)]


def _learned_key(model: str) -> str:
    return f"{prefix(model)}learned"


def _learned(entries: Mapping[bytes, bytes]) -> dict[str, KeptTimes]:
    return {kind.decode(): _KEPT.decode(text) for kind, text in entries.items()}


def _location_key(slot: str) -> str:
    return f"ps:slot:{slot}"


def _name(reply: bytes) -> str:
    return reply.decode()


def _nothing(_: Any) -> None:
    """Drops the reply of a plain write, which its caller does not need."""


def _models(entries: Mapping[bytes, bytes]) -> dict[str, StoredModel]:
    return {name.decode(): StoredModel(_MODEL.decode(text), text) for name, text in entries.items()}


def _rollouts(entries: Mapping[bytes, bytes]) -> dict[str, StoredRollout]:
    return {name.decode(): StoredRollout(_renamed(_ROLLOUT.decode(text), _IN_SETTINGS), text) for name, text in entries.items()}


def _renamed(rollout: Rollout, names: Mapping[str, str]) -> Rollout:
    tables = rollout.added.items()
    return replace(
        rollout, added={name: {names.get(key, key): table[key] for key in table if key not in _GONE} for name, table in tables}
    )


def _stored_keys(entries: Mapping[bytes, bytes]) -> dict[str, StoredKey]:
    keys: dict[str, StoredKey] = {}
    for name, text in entries.items():
        if name == _EDITION:
            continue
        try:
            keys[name.decode()] = _stored_key(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            log.warning("stored_key_unreadable", key=name.decode("ascii", "replace")[:32], reason=str(error))
    return keys


def _flat(stored: StoredKey) -> dict[str, Any]:
    """As JSON has it: the settings of extensions stand beside the key's own, as in [[keys]]."""
    table = msgspec.to_builtins(replace(stored, text=b""))
    own = {name: value for name, value in table["key"].items() if name != "extension_settings"}
    return {**table, "key": own | dict(stored.key.extension_settings)}


def _stored_key(text: bytes) -> StoredKey:
    stored = _STORED_KEY.decode(text)
    added = {name: value for name, value in msgspec.json.decode(text)["key"].items() if name not in _OF_KEYS}
    return replace(stored, key=replace(stored.key, extension_settings=added), text=text)


def _levels(reply: Sequence[Any]) -> KeyLevels:
    edition, gateways, now, *numbers = reply
    levels = list(zip(map(float, numbers[::2]), map(float, numbers[1::2]), strict=True))
    return KeyLevels(int(edition), int(gateways), int(now) / 1000, levels)


def _unix_seconds(time: Sequence[Any]) -> float:
    return int(time[0]) + int(time[1]) / 1e6


def _location(text: bytes | None) -> SlotLocation | None:
    return _LOCATION.decode(text) if text else None


def _profile_wishes(entries: Mapping[bytes, bytes]) -> dict[str, ProfileWish]:
    return {name.decode(): _WISH.decode(text) for name, text in entries.items()}


def _profile_wish(text: bytes | None) -> ProfileWish | None:
    return _WISH.decode(text) if text else None
