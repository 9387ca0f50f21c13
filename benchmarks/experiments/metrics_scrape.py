"""The time of a scrape with 50 models, and its number of series: of a real gateway over full queues, and of a worker's page."""

from __future__ import annotations

import os
import statistics
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prometheus_client import generate_latest

from benchmarks.main_path.producer import fill
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.records import ClaimedJob, Ending, Settled
from penstock.broker.store.sync import RedisStore
from penstock.job import JobState, Payload, Priority, new_job_id
from penstock.loadtest.stack import Processes, await_ready, free_port, running
from penstock.model_spec import ModelInfo, ModelSpec, SlotInfo, WorkerInfo
from penstock.workers.ipc.frames import BatchDone
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.events import Cause
from penstock.workers.telemetry.gauges import UpkeepMetrics
from penstock.workers.telemetry.metrics import WorkerMetrics

_MODELS = [f"model-{number}" for number in range(50)]
_JOBS = 400  # per model: deep enough that the gateway samples the queue for its oldest job
_TIMES = 15


def measure_scrapes(folder: Path) -> dict[str, float]:
    gateway, worker = _gateway(folder), _worker()
    return {
        "scrape_ms_50_models": max(gateway[0], worker[0]),
        "series_50_models": max(gateway[1], worker[1]),
        "scrape_ms_gateway": gateway[0],
        "scrape_ms_worker": worker[0],
        "series_gateway": gateway[1],
        "series_worker": worker[1],
    }


def _gateway(folder: Path) -> tuple[float, int]:
    plan = StackPlan(folder, free_port())
    with store_server(plan) as server:
        store = RedisStore(server.url)
        slots = []
        for model in _MODELS:
            store.announce_model(ModelInfo(model, versions={"1": None}))
            slots.append(SlotInfo(model, "1", "ready", latency_s={1: 0.01, 8: 0.02}))
            for _ in fill(store, model, _JOBS, data=b"1"):
                pass
        store.announce_worker(WorkerInfo("w", "here", os.getpid(), time.time(), tuple(slots)), ttl_s=120.0)
        with running(Processes(folder, stores_environment(plan, server.url)), [["gateway"]]) as processes:
            await_ready(plan.port, processes, path="/startupz")
            return _median(lambda: _read(f"{plan.url}/metrics"))


def _read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


def _worker() -> tuple[float, int]:
    """The page of a worker with 50 models, filled directly, because a real one would need 50 child processes."""
    metrics = WorkerMetrics("w", models=len(_MODELS))
    metrics.serving = True
    slots = [SlotInfo(model, "1", "ready", pid=os.getpid()) for model in _MODELS]
    wanted = dict.fromkeys(_MODELS, 1)
    UpkeepMetrics(
        "w",
        metrics.registry,
        slots=lambda: slots,
        serving=lambda: wanted,
        on_store_failure=metrics.on_store_failed,
        state_dir=Path(),
    )
    for model in _MODELS:
        _work(metrics, ModelSpec(model, "m.py"))
    return _median(lambda: generate_latest(metrics.registry).decode())


def _work(metrics: WorkerMetrics, spec: ModelSpec) -> None:
    now = time.time()
    jobs = tuple(
        ClaimedJob(new_job_id(spec.name), "t", Payload("application/json", b"1"), priority, now - 1.0, now + 60.0, 1, 0)
        for priority in Priority
    )
    batch = Batch(jobs, "full", "w", "n", claimed_at=time.monotonic(), leased_at=now)
    metrics.on_claimed(spec, batch)
    metrics.on_ran(spec, batch, BatchDone(1, [], batch.claimed_at, batch.claimed_at, 0.1, 0.2, 0.3, decode_s=0.1, padding=0.5))
    endings = tuple(Ending(job.id, job.token, JobState.SUCCEEDED) for job in jobs)
    metrics.on_settled(spec, replace(batch, endings=endings), [Settled.OK] * len(jobs), 0.1)
    metrics.on_loaded(spec, 1.0)
    for cause in Cause:
        metrics.on_lost(spec, cause, batch)
    for why in ("crashed", "timeout", "recycled", "device", "unloadable"):
        metrics.on_child_ended(spec, why)


def _median(scrape: Callable[[], str]) -> tuple[float, int]:
    """The median milliseconds of a scrape, and its number of series."""
    took_ms, text = [], ""
    for _ in range(_TIMES):
        began = time.perf_counter()
        text = scrape()
        took_ms.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took_ms), sum(not line.startswith("#") for line in text.splitlines())
