"""The JSON views of models and workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.models.registry import ModelEntry
from penstock.gateway.models.slots import scaling_of, slots_of
from penstock.model_spec import LearnedCalls, ScalingInfo, SlotInfo, WorkerInfo


def model_view(entry: ModelEntry, workers: Sequence[WorkerInfo]) -> dict[str, Any]:
    info = entry.info
    versions = {name: _version_view(entry, name, workers) for name in entry.versions}
    return {
        # Clients of other servers read these four. `created` is 0, because it is not stored.
        "id": info.name,
        "object": "model",
        "created": 0,
        "owned_by": "penstock",
        "name": info.name,
        "default_version": entry.default.name,
        "ready": entry.default.capacity.ready_slots > 0,
        "paused": entry.is_paused,
        "ready_slots": entry.ready_slots,
        "wanted_slots": sum(version["wanted_slots"] for version in versions.values()),
        "policy": {"max_batch_size": info.policy.max_batch_size, "max_wait_s": info.policy.max_wait_s},
        "limits": {
            "max_queue_depth": info.limits.max_queue_depth,
            "deadline_s": info.limits.deadline_s,
            "bulk_deadline_s": info.limits.bulk_deadline_s,
            "result_ttl_s": info.limits.result_ttl_s,
            "sync_result_ttl_s": info.limits.sync_result_ttl_s,
            "max_attempts": info.limits.max_attempts,
            "max_crashes": info.limits.max_crashes,
            "max_run_s": info.limits.max_run_s,
        },
        "versions": versions,
        "links": {"submit": f"/v1/models/{info.name}/jobs", "predict": f"/predictions/{info.name}"},
    }


def worker_view(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "started_at": rfc3339(worker.started_at),
        "seen_at": rfc3339(worker.seen_at),
        "drained": worker.drained,
        "holding": worker.holding,
        "machine": worker.machine and asdict(worker.machine),
        "slots": [_slot_view(slot) for slot in worker.slots],
    }


def _version_view(entry: ModelEntry, name: str, workers: Sequence[WorkerInfo]) -> dict[str, Any]:
    version = entry.versions[name]
    slots = slots_of(workers, entry.name, name, scale=version.scale, mark=entry.mark)
    view: dict[str, Any] = {
        "ready_slots": slots.ready,
        "wanted_slots": slots.wanted,
        "workers": version.scale,
        "state": slots.state.value,
        "loaded": version.info is not None,
    }
    if scaling := scaling_of(workers, entry.name, name):
        view["scaling"] = scaling_view(scaling)
    if not slots.ready:
        view["why"] = slots.why
    if slots.failed:
        view["failed"] = slots.reasons
    learned = next((slot.calls for worker in workers for slot in worker.slots if _serves(slot, entry.name, name)), None)
    if learned is not None:
        view["calls"] = calls_view(learned)
    if version.info is not None:
        view |= {
            "description": version.info.description,
            "accepts": list(version.info.accepts),
            "input_schema": version.info.input_schema,
            "output_schema": version.info.output_schema,
            "streams": version.info.streams,
        }
        if version.info.source:
            view["source"] = version.info.source
    return view


def scaling_view(infos: Sequence[ScalingInfo]) -> dict[str, Any]:
    """The scaling of a version's slots by its work, over all workers; `null`: unknown. The bounds are per worker process, as in
    the settings.
    """
    last = max(infos, key=lambda info: info.changed_at)
    return {
        "min_slots": max(info.least for info in infos),
        "max_slots": max(info.limit for info in infos),
        "idle_unload_s": last.idle_unload_s,
        "start_s": min((info.start_s for info in infos if info.start_s), default=None),
        "memory_bytes": max(info.memory_bytes for info in infos) or None,
        "started_slots": sum(info.loads for info in infos),
        "last_change": {"reason": last.reason, "at": rfc3339(last.changed_at)} if last.changed_at else None,
    }


def _serves(slot: SlotInfo, model: str, version: str) -> bool:
    return slot.calls is not None and (slot.model, slot.version) == (model, version)


def calls_view(calls: LearnedCalls) -> dict[str, Any]:
    """What a slot has learned about the model's calls: the measure of their size, and the seconds by size."""
    return {
        "measure": calls.measure,
        "items_per_call": calls.items_per_call,
        "run_s": {f"{size:g}": seconds for size, seconds in calls.run_s},
    }


def _slot_view(slot: SlotInfo) -> dict[str, Any]:
    view: dict[str, Any] = {
        "model": slot.model,
        "version": slot.version,
        "state": slot.state,
        "device": slot.device,
        "pid": slot.pid,
        "device_name": slot.device_name or None,
        "device_uuid": slot.device_uuid or None,
        "cores": list(slot.cores),
        "threads": slot.threads or None,
        "node": slot.node,
        "placement": slot.placement,
        "provider": slot.provider or None,
        "latency_s": {str(size): seconds for size, seconds in sorted(slot.latency_s.items())},
        "calls": calls_view(slot.calls) if slot.calls else None,
        "at_once": slot.at_once or None,
        "load_s": slot.load_s,
        "error": slot.error or None,
        "restarts": slot.restarts,
        "warm_up": {
            "from": slot.warm_origin.value,
            "first_call_s": {str(size): seconds for size, seconds in sorted(slot.first_call_s.items())},
            "note": slot.warm_note,
        },
    }
    return {name: value for name, value in view.items() if value is not None}


def rebased(schema: Any, base: str) -> Any:
    """The schema with its `#/...` references moved below `base`, its place in the document."""
    if isinstance(schema, dict):
        moved = {key: rebased(value, base) for key, value in schema.items()}
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref.startswith("#"):
            moved["$ref"] = base + ref[1:]
        return moved
    return [rebased(item, base) for item in schema] if isinstance(schema, list) else schema
