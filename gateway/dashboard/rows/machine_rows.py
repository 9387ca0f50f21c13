"""Workers with their pinning plan, and a model's versions with their learned run times. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from penstock import words
from penstock.gateway.dashboard.rows.learned import LearnedCurve, curve_of, why_sizes
from penstock.gateway.models.registry import ModelEntry
from penstock.gateway.models.slots import NOT_LOADED, UNLOADED, scaling_of, slots_of, why_unserved
from penstock.model_spec import LearnedCalls, ScalingInfo, SlotInfo, WorkerInfo

SLOT_TONES = {"ready": "good", "loading": "warn", "failed": "bad"}
# A live worker announces itself every few seconds.
_SILENT_S = 10.0
# The depth of objects and lists in a sample, and the references or choices that it follows in a row.
_DEEPEST = 3
_MOST_STEPS = 8


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker. `silent`: it has not announced itself for a while."""

    name: str
    host: str
    pid: int
    up: str
    seen: str
    silent: bool
    ready: int
    slots: tuple[SlotInfo, ...]
    devices: tuple[str, ...]
    drained: bool = False
    holding: int = 0


def worker_rows(workers: Iterable[WorkerInfo], now: float) -> list[WorkerRow]:
    return [
        WorkerRow(
            name=worker.name,
            host=worker.host,
            pid=worker.pid,
            up=words.duration(max(0.0, now - worker.started_at)) if worker.started_at else words.UNKNOWN,
            seen=words.ago(worker.seen_at, now),
            silent=now - worker.seen_at > _SILENT_S,
            ready=sum(slot.state == "ready" for slot in worker.slots),
            slots=tuple(sorted(worker.slots, key=lambda slot: (slot.model, slot.version, slot.device, slot.pid))),
            devices=tuple(sorted({slot.device for slot in worker.slots})),
            drained=worker.drained,
            holding=worker.holding,
        )
        for worker in sorted(workers, key=lambda worker: worker.name)
    ]


def core_map(slots: Sequence[SlotInfo]) -> list[tuple[int, int]]:
    """Each core with a pinned slot, and the number of its slots; the page marks cores with several."""
    slots_by_core: dict[int, int] = {}
    for slot in slots:
        for core in slot.cores:
            slots_by_core[core] = slots_by_core.get(core, 0) + 1
    return sorted(slots_by_core.items())


def place_of(slot: SlotInfo) -> str:
    """The other parts of a slot's pinning plan: threads, memory node, whether it shares its device."""
    parts = [words.plural(slot.threads, "thread")] if slot.threads else []
    parts += [f"node {slot.node}"] if slot.node is not None else []
    parts += [slot.placement] if slot.placement != "dedicated" else []
    return ", ".join(parts)


def slowest_call(slot: SlotInfo) -> tuple[int, float]:
    """Batch size and seconds of a slot's slowest first call, if it has reported any."""
    return max(slot.first_call_s.items(), key=lambda call: call[1])


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version of a model. `latency` and `first_call` are pairs of a batch size and its seconds. `calls`: what a slot has
    learned about the calls that batches are cut into. `scaling`: the bounds of its slots, if they follow the work.
    """

    name: str
    default: bool
    tone: str
    state: str
    ready_slots: int
    wanted_slots: int
    scale: int | None
    description: str
    accepts: tuple[str, ...]
    input_schema: str
    output_schema: str
    latency: tuple[tuple[int, float], ...]
    first_call: tuple[tuple[int, float], ...]
    load_s: float | None
    per_s: float
    calls: LearnedCalls | None = None
    scaling: str = ""
    why_sizes: str = ""

    @property
    def table(self) -> list[tuple[int, float]]:
        """The listed sizes: the powers of two, and the largest."""
        return [pair for pair in self.latency if pair[0].bit_count() == 1 or pair is self.latency[-1]]

    @property
    def curve(self) -> LearnedCurve | None:
        return curve_of(self.latency)


def version_rows(entry: ModelEntry, workers: Sequence[WorkerInfo]) -> list[VersionRow]:
    return [_version_row(entry, name, workers) for name in entry.versions]


def _version_row(entry: ModelEntry, name: str, workers: Sequence[WorkerInfo]) -> VersionRow:
    version = entry.versions[name]
    slots = [slot for worker in workers for slot in worker.slots if (slot.model, slot.version) == (entry.name, name)]
    ready = version.capacity.ready_slots
    state = "ready" if ready else why_unserved(workers, entry.name, version)
    is_away = version.is_off or state.startswith(UNLOADED)
    tone = "good" if ready else "bad" if state.startswith(NOT_LOADED) else "idle" if is_away else "warn"
    info = version.info
    return VersionRow(
        name=name,
        default=version is entry.default,
        tone=tone,
        state=state,
        ready_slots=ready,
        wanted_slots=slots_of(workers, entry.name, name).wanted,
        scale=version.scale,
        description=info.description if info else "",
        accepts=info.accepts if info else (),
        input_schema=_pretty(info.input_schema if info else None),
        output_schema=_pretty(info.output_schema if info else None),
        latency=tuple(sorted(version.capacity.latency_s.items())),
        first_call=_first_calls(slots),
        load_s=max((slot.load_s for slot in slots if slot.state == "ready"), default=None),
        per_s=version.capacity.per_s,
        calls=next((slot.calls for slot in slots if slot.calls), None),
        scaling=_scaling(scaling_of(workers, entry.name, name)),
        why_sizes=why_sizes(sorted(version.capacity.latency_s.items()), entry.info.policy),
    )


def _scaling(infos: Sequence[ScalingInfo]) -> str:
    """`1 to 4 slots per worker process; last change: backlog`."""
    if not infos:
        return ""
    last = max(infos, key=lambda info: info.changed_at)
    bounds = f"{last.least} to {last.limit} slots per worker process"
    return f"{bounds}; last change: {last.reason}" if last.changed_at else bounds


def _first_calls(slots: Iterable[SlotInfo]) -> tuple[tuple[int, float], ...]:
    """The seconds of the slowest slot, by batch size."""
    longest: dict[int, float] = {}
    for slot in slots:
        for size, seconds in slot.first_call_s.items():
            longest[size] = max(seconds, longest.get(size, 0.0))
    return tuple(sorted(longest.items()))


def _pretty(schema: dict[str, Any] | None) -> str:
    return orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode() if schema else ""


def sample_of(schema: dict[str, Any] | None) -> str:
    """A small JSON value that fits the schema, for the page's example command."""
    whole = schema or {}
    return orjson.dumps(_sample(whole, whole, 0)).decode()


def _sample(schema: dict[str, Any], whole: dict[str, Any], depth: int) -> Any:
    schema = _resolved(schema, whole)
    for given in ("example", "default", "const"):
        if given in schema:
            return schema[given]
    for choices in ("examples", "enum"):
        if schema.get(choices):
            return schema[choices][0]
    kind = _kind(schema)
    if kind == "object" and depth < _DEEPEST:
        fields = schema.get("properties") or {}
        return {name: _sample(fields.get(name) or {}, whole, depth + 1) for name in schema.get("required") or [*fields][:3]}
    if kind == "array" and depth < _DEEPEST:
        items, least = schema.get("items"), schema.get("minItems") or 1
        return [_sample(items, whole, depth + 1)] * min(least, 8) if isinstance(items, dict) else []
    if kind in ("integer", "number", ""):
        highest = min(4, schema.get("maximum", 4))
        return max(highest, schema.get("minimum", highest))
    return {"string": "text", "boolean": True, "null": None, "object": {}, "array": []}.get(kind, 4)


def _resolved(schema: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    """The schema behind references and choices; of several alternatives the first that is not null."""
    for _ in range(_MOST_STEPS):
        forms = [form for word in ("anyOf", "oneOf", "allOf") for form in schema.get(word) or () if form != {"type": "null"}]
        if isinstance(schema.get("$ref"), str):
            schema = _referred(schema["$ref"], whole)
        elif forms and "default" not in schema and "example" not in schema:
            schema = forms[0]
        else:
            return schema
    return {}


def _referred(reference: str, whole: dict[str, Any]) -> dict[str, Any]:
    """The target of `#/$defs/name`; empty for a reference to another document."""
    target: Any = whole
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else ():
        target = target.get(step) if isinstance(target, dict) else None
    return target if isinstance(target, dict) and target is not whole else {}


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type") or ("object" if "properties" in schema else "")
    kinds = kind if isinstance(kind, list) else [kind]
    return next((one for one in kinds if isinstance(one, str) and one != "null"), "")
