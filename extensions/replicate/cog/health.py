"""Whether a model can take predictions, in the words of Cog's health check. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.broker.records import QueueStats
from penstock.extensions.replicate.gateway.document import COG_VERSION
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.models.registry import ModelEntry
from penstock.model_spec import SlotInfo, WorkerInfo

_SETUP = {"ready": "succeeded", "loading": "starting", "failed": "failed"}


def health_view(entry: ModelEntry, workers: Iterable[WorkerInfo], stats: QueueStats | None) -> dict[str, Any]:
    """`stats` is None if the store cannot be reached."""
    serving = [(worker, slot) for worker in workers for slot in worker.slots if _serves(slot, entry)]
    slots = [slot for _, slot in serving]
    view: dict[str, Any] = {"status": status_of_slots(slots, stats, entry), "version": {"cog": COG_VERSION}}
    if serving:
        view["setup"] = _setup_view(*next((one for one in serving if one[1].state == _leading_state(slots)), serving[0]))
    if stats is None:
        view["user_healthcheck_error"] = "the job store cannot be reached"
    return view


def status_of_slots(slots: Sequence[SlotInfo], stats: QueueStats | None, entry: ModelEntry) -> str:
    """A model that no worker has is DEFUNCT if one has had it, else STARTING."""
    if stats is None:
        return "UNHEALTHY"
    state = _leading_state(slots)
    if state == "ready":
        capacity = sum(slot.state == "ready" for slot in slots) * entry.info.policy.max_batch_size
        return "BUSY" if stats.depth or stats.leased >= capacity else "READY"
    if state == "failed":
        return "SETUP_FAILED"
    return "STARTING" if slots or entry.default.info is None else "DEFUNCT"


def _leading_state(slots: Sequence[SlotInfo]) -> str:
    """One ready slot serves the model, and one that loads may still."""
    states = {slot.state for slot in slots}
    return next((state for state in ("ready", "loading", "failed") if state in states), "")


def _setup_view(worker: WorkerInfo, slot: SlotInfo) -> dict[str, Any]:
    return {"started_at": rfc3339(worker.started_at), "status": _SETUP.get(slot.state, "starting"), "logs": slot.error}


def _serves(slot: SlotInfo, entry: ModelEntry) -> bool:
    return (slot.model, slot.version) == (entry.name, entry.default.name)
