"""Models as TorchServe lists and describes them, key by key in its order. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from penstock.broker.records import QueueStats
from penstock.extensions.torchserve.management.registering import Page
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.models.registry import ModelEntry
from penstock.model_spec import BatchPolicy, Limits, SlotDeviceUse, SlotInfo, WorkerInfo
from penstock.rollout import Rollout

# TorchServe numbers its workers from here.
FIRST_ID = 9_000
# TorchServe gives up after this time. Penstock starts workers again for as long as they are wanted.
_RETRY_S = 300
_Record = TypeVar("_Record", BatchPolicy, Limits)
_DEVICE = re.compile(r"[a-z]+:(\d+)")


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What is known of one version beside its workers. `loaded_at_start`: settings name it."""

    model: str
    version: str
    url: str
    policy: BatchPolicy
    limits: Limits
    workers: int
    loaded_at_start: bool
    use_venv: bool = False
    runtime: str = "python"


def version_facts(
    entry: ModelEntry, version: str, rollout: Rollout, workers: Sequence[WorkerInfo], declared_source: str = ""
) -> VersionFacts:
    """`declared_source`: the source that the settings of this gateway name. A version that was added at run time has a table of
    its own, whose values override those of the model.
    """
    table = rollout.added.get(version, {})
    known = entry.versions[version].info
    source = str(table.get("source", "")) or (known.source if known else "") or declared_source
    options = table.get("options")
    return VersionFacts(
        model=entry.name,
        version=version,
        url=str(table.get("registered_from", "")) or shown_url(source),
        policy=_over(entry.info.policy, table),
        limits=_over(entry.info.limits, table),
        workers=_workers(entry.name, version, rollout, workers),
        loaded_at_start=not table,
        use_venv=bool(options.get("use_venv")) if isinstance(options, dict) else False,
    )


def shown_url(source: str) -> str:
    """A remote source without its query, which may hold a key; a local one without its folder, which is the store there."""
    return source.partition("?")[0] if "://" in source else PurePosixPath(source).name


def describe_version(facts: VersionFacts, workers: Sequence[WorkerInfo], stats: QueueStats | None) -> dict[str, Any]:
    """The describe object. The queue is that of the model: its versions share it."""
    slots = [(number, worker, slot) for number, worker, slot in numbered(workers) if _serves(slot, facts)]
    devices = sorted({int(match[1]) for _, _, slot in slots if (match := _DEVICE.fullmatch(slot.device))})
    waiting = stats.depth if stats is not None else 0
    return {
        "modelName": facts.model,
        "modelVersion": facts.version,
        "modelUrl": facts.url,
        "runtime": facts.runtime,
        "minWorkers": facts.workers,
        "maxWorkers": facts.workers,
        "batchSize": facts.policy.max_batch_size,
        "maxBatchDelay": round(facts.policy.max_wait_s * 1_000),
        "responseTimeout": round(facts.limits.max_run_s),
        "startupTimeout": round(facts.limits.load_timeout_s),
        "maxRetryTimeoutInSec": _RETRY_S,
        "clientTimeoutInMills": 0,
        "parallelType": "",
        "parallelLevel": 0,
        "deviceType": "gpu" if devices else "cpu",
        **({"deviceIds": devices} if devices else {}),
        "continuousBatching": False,
        "useJobTicket": False,
        "useVenv": facts.use_venv,
        "stateful": False,
        "sequenceMaxIdleMSec": 0,
        "sequenceTimeoutMSec": 0,
        "maxNumSequence": 0,
        "maxSequenceJobQueueSize": 0,
        "loadedAtStartup": facts.loaded_at_start,
        "workers": [_worker_view(*slot) for slot in slots],
        "jobQueueStatus": {
            "remainingCapacity": max(0, facts.limits.max_queue_depth - waiting),
            "pendingRequests": waiting,
        },
    }


def listed(urls: Mapping[str, str], page: Page) -> dict[str, Any]:
    """`urls`: by model, of its default version."""
    names = sorted(urls)
    end = page.start + page.limit
    models = [{"modelName": name, "modelUrl": urls[name]} for name in names[page.start : end]]
    return {**({"nextPageToken": str(end)} if end < len(names) else {}), "models": models}


def numbered(workers: Iterable[WorkerInfo]) -> list[tuple[int, WorkerInfo, SlotInfo]]:
    """All slots with TorchServe's numbers: in the order in which their worker processes were started."""
    slots = [(worker, slot) for worker in sorted(workers, key=lambda one: (one.started_at, one.name)) for slot in worker.slots]
    return [(FIRST_ID + index, worker, slot) for index, (worker, slot) in enumerate(slots)]


def _worker_view(number: int, worker: WorkerInfo, slot: SlotInfo) -> dict[str, Any]:
    device = _DEVICE.fullmatch(slot.device)
    return {
        "id": str(number),
        "startTime": rfc3339(worker.started_at),
        # TorchServe says so of a worker that is being started, too.
        "status": "READY" if slot.state == "ready" else "UNLOADING",
        "memoryUsage": slot.memory_bytes,
        "pid": slot.pid or -1,
        "gpu": device is not None,
        "gpuUsage": _gpu_usage(device[1], slot.device_use) if device is not None else "N/A",
    }


def _gpu_usage(device: str, use: SlotDeviceUse | None) -> str:
    """As TorchServe has it from nvidia-smi; without what the driver does not say."""
    shares = {"gpu": use.share, "memory": use.memory_share} if use is not None else {}
    known = (f" utilization.{name} [%]::{round(share * 100)} %" for name, share in shares.items() if share is not None)
    memory = f" memory.used [MiB]::{use.used_bytes >> 20} MiB" if use is not None else ""
    return f"gpuId::{device}{''.join(known)}{memory}"


def _serves(slot: SlotInfo, facts: VersionFacts) -> bool:
    return (slot.model, slot.version) == (facts.model, facts.version)


def _workers(model: str, version: str, rollout: Rollout, workers: Sequence[WorkerInfo]) -> int:
    """How many workers each process should have: as it was scaled, else the most that one announces."""
    scaled = rollout.scale.get(version)
    if scaled is not None:
        return scaled
    return max(((worker.wanted or {}).get(model, {}).get(version, 0) for worker in workers), default=0)


def _over(record: _Record, table: Mapping[str, Any]) -> _Record:
    return replace(record, **{field.name: table[field.name] for field in fields(record) if field.name in table})
