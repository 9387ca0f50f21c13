from __future__ import annotations

import os
import socket
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from penstock.broker.records import ClaimedJob, Ending, Repair, Settled, SweepReport
from penstock.errors import ConfigError, StoreUnavailable
from penstock.job import Call, JobId, JobState, Payload, Priority
from penstock.loadtest.stack import free_port
from penstock.model_spec import ModelSpec, SlotDeviceUse, SlotInfo
from penstock.workers.devices.gpus import NvmlRefused, PyNvml
from penstock.workers.ipc.frames import BatchDone
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.events import Cause
from penstock.workers.telemetry.gauges import SlotMeter, UpkeepMetrics
from penstock.workers.telemetry.gpu_meter import GpuMeter, GpuReading
from penstock.workers.telemetry.histograms import Histogram
from penstock.workers.telemetry.metrics import DETAILED_MODELS, WorkerMetrics

SPEC = ModelSpec("m", "m.py")


def test_the_scrape_is_served_on_the_address_named_and_no_other() -> None:
    # Regression: metrics were served on every address, while a gateway without keys serves loopback only.
    port = free_port()
    WorkerMetrics("w").serve("127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"penstock_batch_size" in answer.read()
    heard = [c.laddr for c in psutil.Process(os.getpid()).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {address.ip for address in heard if address.port == port} == {"127.0.0.1"}


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port {taken.getsockname()[1]}") as refused:
            WorkerMetrics("w").serve("127.0.0.1", taken.getsockname()[1])
    assert "worker.metrics_port" in str(refused.value.hint)


def test_without_a_port_nothing_is_opened() -> None:
    WorkerMetrics("w").serve("127.0.0.1", 0)


def job(number: int, *, came_at: float, attempts: int = 1, priority: Priority = Priority.INTERACTIVE) -> ClaimedJob:
    id = JobId(f"{number:026d}", "m")
    return ClaimedJob(id, "t", Payload("application/json", b"1"), priority, came_at, came_at + 100, attempts, 0)


def batch_of(*jobs: ClaimedJob) -> Batch:
    return Batch(jobs, "full", "w", "nonce", claimed_at=time.monotonic(), leased_at=1_000.0)


def shard() -> Batch:
    return replace(batch_of(replace(job(4, came_at=999.0), call=Call.SHARD)), reason="bulk")


def sample(metrics: WorkerMetrics, name: str, priority: str = "interactive", **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model": "m", "priority": priority, **labels})


@pytest.fixture
def metrics() -> WorkerMetrics:
    metrics = WorkerMetrics("w")
    metrics.serve("127.0.0.1", free_port())
    return metrics


def test_the_wait_in_the_queue_is_told_by_redis_clock_and_once_per_job(metrics: WorkerMetrics) -> None:
    again = job(3, came_at=0.0, attempts=2)
    metrics.on_claimed(SPEC, batch_of(job(1, came_at=999.0), job(2, came_at=990.0, priority=Priority.BULK), again))
    assert sample(metrics, "penstock_queue_wait_seconds_sum") == 1.0
    assert sample(metrics, "penstock_queue_wait_seconds_count") == 1.0
    assert sample(metrics, "penstock_queue_wait_seconds_sum", "bulk") == 10.0


def test_a_job_lasts_from_its_acceptance_until_it_is_settled_and_counts_for_whoever_held_it(metrics: WorkerMetrics) -> None:
    batch = batch_of(job(1, came_at=400.0), job(2, came_at=0.0))
    endings = tuple(Ending(job.id, job.token, JobState.SUCCEEDED) for job in batch.jobs)
    metrics.on_settled(SPEC, replace(batch, endings=endings), [Settled.OK, Settled.STALE], 0.002)
    assert sample(metrics, "penstock_job_duration_seconds_sum") == pytest.approx(600.0, abs=5.0)
    assert sample(metrics, "penstock_job_duration_seconds_count") == 1.0
    # The buckets reach half an hour, so that a backlog of minutes is visible.
    assert sample(metrics, "penstock_job_duration_seconds_bucket", le="300.0") == 0.0
    assert sample(metrics, "penstock_job_duration_seconds_bucket", le="1800.0") == 1.0


def worked(metrics: WorkerMetrics, models: list[str]) -> None:
    """Use every label that a slot can use."""
    for name in models:
        spec = ModelSpec(name, "m.py")
        batch = batch_of(job(1, came_at=999.0), job(2, came_at=990.0, priority=Priority.BULK))
        endings = tuple(Ending(job.id, job.token, JobState.SUCCEEDED) for job in batch.jobs)
        metrics.on_claimed(spec, batch)
        for reason in ("idle", "full", "wait", "deadline", "solo"):
            metrics.on_ran(
                spec, replace(batch, reason=reason), BatchDone(1, [], 1.0, 2.0, 0.1, 0.2, 0.3, decode_s=0.1, padding=0.5)
            )
        metrics.on_ran(spec, shard(), BatchDone(1, [], 1.0, 2.0, 0.1, 0.2, 0.3, rows=100, bad_rows=2))
        metrics.on_settled(spec, replace(batch, endings=endings), [Settled.OK] * 2, 0.1)
        metrics.on_loaded(spec, 1.0)
        for cause in Cause:
            metrics.on_lost(spec, cause, batch)
        for why in ("crashed", "timeout", "recycled", "device", "unloadable"):
            metrics.on_child_ended(spec, why)
        for how in ("lost", "lapsed"):
            metrics.on_lease_lost(spec, how)


def kept_up(metrics: WorkerMetrics, models: list[str]) -> None:
    slots = [SlotInfo(name, "1", "ready", pid=os.getpid()) for name in models]
    upkeep = UpkeepMetrics(
        "w", metrics.registry, slots=lambda: slots, serving=dict, on_store_failure=metrics.on_store_failed, state_dir=Path()
    )
    upkeep.swept(SweepReport(1, 1, 1, 1, 1, 1, workers_lost=("gone",)))
    upkeep.on_repaired(Repair("0", 10, 1, 1))
    for part in ("slot", "beat", "sweep"):
        metrics.on_store_failed(part)


@pytest.mark.parametrize("count", [DETAILED_MODELS, 50])
def test_a_scrape_with_every_label_in_use_stays_small(count: int) -> None:
    models = [f"model-{number}" for number in range(count)]
    metrics = WorkerMetrics("w", models=count)
    metrics.serving = True
    worked(metrics, models)
    kept_up(metrics, models)
    assert sum(len(metric.samples) for metric in metrics.registry.collect()) <= 2_000


def test_a_worker_of_many_models_tells_waits_of_each_and_stages_of_all() -> None:
    metrics = WorkerMetrics("w", models=50)
    metrics.serving = True
    worked(metrics, ["m", "n"])
    assert metrics.registry.get_sample_value("penstock_queue_wait_seconds_count", {"model": "m", "priority": ""}) == 2.0
    stage = {"model": "", "stage": "inference"}
    assert metrics.registry.get_sample_value("penstock_handler_seconds_count", stage) == 10.0
    assert metrics.registry.get_sample_value("penstock_handler_seconds_sum", stage) == pytest.approx(2.0)


def test_a_shard_counts_its_rows_and_its_time_at_the_device_and_is_no_batch(metrics: WorkerMetrics) -> None:
    metrics.on_ran(SPEC, shard(), BatchDone(1, [], 1.0, 2.0, 0.1, 0.2, 0.3, rows=100, bad_rows=2))
    value = metrics.registry.get_sample_value
    assert value("penstock_bulk_rows_total", {"model": "m", "outcome": "succeeded"}) == 98.0
    assert value("penstock_bulk_rows_total", {"model": "m", "outcome": "failed"}) == 2.0
    assert value("penstock_slot_busy_seconds_total", {"model": "m"}) == pytest.approx(0.2)
    assert value("penstock_batch_flush_total", {"model": "m", "reason": "bulk"}) == 1.0
    assert not value("penstock_batch_size_count", {"model": "m"})


def test_the_busy_seconds_are_those_of_inference(metrics: WorkerMetrics) -> None:
    worked(metrics, ["m"])
    assert metrics.registry.get_sample_value("penstock_slot_busy_seconds_total", {"model": "m"}) == pytest.approx(1.2)
    assert metrics.registry.get_sample_value("penstock_claimed_items_total", {"model": "m"}) == 2.0
    assert metrics.registry.get_sample_value("penstock_io_seconds_sum", {"model": "m", "stage": "decode"}) == pytest.approx(0.5)


def test_batches_that_overlap_keep_a_slot_busy_once(metrics: WorkerMetrics) -> None:
    for number, busy_s in enumerate((0.3, 0.1), 1):
        metrics.on_ran(SPEC, batch_of(job(number, came_at=0.0)), BatchDone(number, [], 1.0, 2.0, 0.0, 0.3, 0.0, busy_s=busy_s))
    value = metrics.registry.get_sample_value
    assert value("penstock_slot_busy_seconds_total", {"model": "m"}) == pytest.approx(0.4)
    assert value("penstock_handler_seconds_sum", {"model": "m", "stage": "inference"}) == pytest.approx(0.6)


def test_a_round_that_finds_the_store_away_is_counted_and_still_fails() -> None:
    metrics = WorkerMetrics("w")

    def away(now: float) -> None:
        raise StoreUnavailable("gone")

    upkeep = UpkeepMetrics(
        "w", metrics.registry, slots=list, serving=dict, on_store_failure=metrics.on_store_failed, state_dir=Path()
    )
    with pytest.raises(StoreUnavailable):
        upkeep.counting_failures("beat", away)(0.0)
    assert metrics.registry.get_sample_value("penstock_store_errors_total", {"part": "beat"}) == 1.0


def test_the_memory_of_a_child_between_two_lives_is_left_out() -> None:
    metrics = WorkerMetrics("w")
    slots = [SlotInfo("m", "1", "loading"), SlotInfo("m", "1", "ready", pid=os.getpid())]
    UpkeepMetrics(
        "w", metrics.registry, slots=lambda: slots, serving=dict, on_store_failure=metrics.on_store_failed, state_dir=Path()
    )
    assert metrics.registry.get_sample_value("penstock_child_resident_bytes", {"model": "m", "slot": "0"}) is None
    resident = metrics.registry.get_sample_value("penstock_child_resident_bytes", {"model": "m", "slot": "1"})
    assert resident is not None
    assert resident > 1_000_000
    assert metrics.registry.get_sample_value("penstock_worker_up", {"model": "m", "worker": "w"}) == 1.0


def test_a_histogram_counts_what_lies_at_a_bound_as_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe_all([0.5, 1.0, 1.5, 9.0])
    assert histogram.read() == ([("1.0", 2), ("2.0", 3), ("+Inf", 4)], 12.0)


class Driver:
    """A driver with one GPU that reports its load and one MIG slice that does not."""

    def __init__(self) -> None:
        self.awake = True

    def ask(self, name: str, *arguments: Any) -> Any:
        match name, *arguments:
            case ("Init",) if self.awake:
                return None
            case ("DeviceGetHandleByUUID", "GPU-1" | "MIG-1" as uuid):
                return uuid
            case ("DeviceGetMemoryInfo", _):
                return SimpleNamespace(used=1_000, total=4_000)
            case ("DeviceGetUtilizationRates", "GPU-1"):
                return SimpleNamespace(gpu=75, memory=20)
        raise NvmlRefused(f"NVML says: Not Supported ({name})")


def test_a_gpu_tells_its_memory_and_its_load_where_it_can() -> None:
    meter = GpuMeter(Driver())
    assert meter.read("GPU-1") == GpuReading(1_000, 4_000, 0.75, 0.2)
    assert meter.read("MIG-1") == GpuReading(1_000, 4_000, None)
    assert meter.read("GPU-gone") is None
    # A GPU that cannot be read does not hide the others.
    assert meter.read("GPU-1") is not None


def test_slots_are_announced_with_what_they_use() -> None:
    own = SlotInfo("m", "1", "ready", device_uuid="GPU-1", pid=os.getpid())
    gone, unknown = SlotInfo("m", "1", "failed"), SlotInfo("m", "1", "ready", device_uuid="GPU-gone")
    first, second, third = SlotMeter(GpuMeter(Driver())).measured([own, gone, unknown])
    assert first.memory_bytes > 1_000_000
    assert first.device_use == SlotDeviceUse(1_000, 0.75, 0.2, 4_000)
    assert (second, third) == (gone, unknown)


def test_a_driver_that_is_away_is_asked_again() -> None:
    driver = Driver()
    driver.awake = False
    meter = GpuMeter(driver)
    assert meter.read("GPU-1") is None
    driver.awake = True
    assert meter.read("GPU-1") is not None


def test_the_scrape_names_a_device_once_however_many_slots_are_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr(PyNvml, "ask", lambda self, name, *arguments: driver.ask(name, *arguments))
    metrics = WorkerMetrics("w")
    on_gpu = SlotInfo("m", "1", "ready", device="cuda:0", device_uuid="GPU-1")
    UpkeepMetrics(
        "w",
        metrics.registry,
        slots=lambda: [on_gpu, on_gpu],
        serving=dict,
        on_store_failure=metrics.on_store_failed,
        state_dir=Path(),
    )
    assert metrics.registry.get_sample_value("penstock_device_memory_used_bytes", {"device": "GPU-1"}) == 1_000.0
    assert metrics.registry.get_sample_value("penstock_device_utilization_ratio", {"device": "GPU-1"}) == 0.75


def test_an_item_that_reports_shows_that_its_worker_is_not_stuck() -> None:
    metrics = WorkerMetrics("w")
    metrics.serving = True
    began = time.time()
    metrics.on_said(SPEC)
    labels = {"model": "m", "worker": "w"}
    seen = metrics.registry.get_sample_value("penstock_worker_last_consumed_timestamp_seconds", labels)
    assert seen is not None
    assert seen >= began
