"""What a gateway reports about the model under load: its version and slots, its counters, the records of its jobs."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from penstock.client.sync import Client
from penstock.client.views import JobView
from penstock.errors import NotFound, PenstockError

_SCRAPE_S = 3.0
_COUNTERS = {
    "penstock_jobs_accepted",
    "penstock_jobs",
    "penstock_jobs_dead",
    "penstock_redelivered",
    "penstock_retried",
    "penstock_settled_stale",
    "penstock_rejected",
}
# The time to wait for jobs that a submit-only load left in the queue.
_JOBS_END_S = 10.0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model before the load. `pids` and `devices` (UUID and name) are those of the workers on this machine."""

    version: str = ""
    slots: int | None = None
    max_batch_size: int | None = None
    max_wait_s: float | None = None
    input_schema: Mapping[str, Any] | None = None
    pids: tuple[int, ...] = ()
    devices: tuple[tuple[str, str], ...] = ()
    on_gpu: bool = False


def read_model_facts(client: Client, model: str, version: str) -> ModelFacts:
    """Raises `NotFound`, which lists the models that exist."""
    body = _found(client, model)
    chosen = version or str(body.get("default_version", ""))
    serving = (body.get("versions") or {}).get(chosen) or {}
    policy = body.get("policy") or {}
    workers = client.workers()
    here = [worker for worker in workers if worker.get("host") == socket.gethostname()]
    slots = _slots(here, model)
    return ModelFacts(
        version=chosen,
        slots=serving.get("ready_slots"),
        max_batch_size=policy.get("max_batch_size"),
        max_wait_s=policy.get("max_wait_s"),
        input_schema=serving.get("input_schema"),
        pids=tuple(worker["pid"] for worker in here if worker.get("pid")),
        devices=tuple({slot["device_uuid"]: slot.get("device_name", "") for slot in slots if slot.get("device_uuid")}.items()),
        on_gpu=any(slot.get("device_uuid") for slot in _slots(workers, model)),
    )


def _slots(workers: Sequence[Mapping[str, Any]], model: str) -> list[dict[str, Any]]:
    return [slot for worker in workers for slot in worker.get("slots", []) if slot.get("model") == model]


def _found(client: Client, model: str) -> dict[str, Any]:
    models = client.models()
    names = sorted(str(each.get("name")) for each in models)
    for each in models:
        if each.get("name") == model:
            return each
    raise NotFound(f"there is no model {model!r} at {client.base_url}", hint=f"it serves: {', '.join(names) or 'none'}")


def read_counters(base: str, model: str) -> dict[str, float]:
    """The counters of one model by name and label; empty if the gateway serves no metrics at this address."""
    try:
        with urllib.request.urlopen(f"{base}/metrics", timeout=_SCRAPE_S) as answer:
            text = answer.read().decode()
    except (OSError, ValueError, urllib.error.URLError):
        return {}
    return dict(_samples(text, model))


def _samples(text: str, model: str) -> Iterable[tuple[str, float]]:
    for family in text_string_to_metric_families(text):
        if family.name not in _COUNTERS:
            continue
        for sample in family.samples:
            if sample.labels.get("model") == model and sample.name.endswith("_total"):
                labels = ",".join(value for name, value in sorted(sample.labels.items()) if name != "model")
                yield (
                    sample.name.removeprefix("penstock_").removesuffix("_total") + (f"_{labels}" if labels else ""),
                    sample.value,
                )


def job_records(client: Client, jobs: Sequence[str]) -> list[JobView]:
    """The jobs that have ended and still have a record; the others get some seconds to end."""
    give_up_at = time.monotonic() + _JOBS_END_S
    records = []
    for job in jobs:
        try:
            handle = client.job(job)
            # Each job gets at least one more poll, even if the others have used up the time.
            view = handle.view if handle.view.final else handle.wait(max(0.1, give_up_at - time.monotonic()))
        except (PenstockError, TimeoutError):
            continue
        if view.final:
            records.append(view)
    return records
