"""TorchServe's metric names: what each counts, and the text as TorchServe writes it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from penstock.extensions.torchserve.gateway.metrics import TorchServeCounts, TorchServeFamily, of_host, torchserve_text
from penstock.gateway.telemetry.metrics_endpoint import only_named
from penstock.job import BatchRecord
from penstock.model_spec import HostLoad, SlotDeviceUse, SlotInfo, WorkerInfo

BATCH = BatchRecord("b", 4, "idle", preprocess_s=0.01, inference_s=0.15, postprocess_s=0.02, decode_s=0.02)
MIB = 1024**2
WORKERS = [
    WorkerInfo(
        "w",
        "box",
        1,
        0.0,
        (SlotInfo("m", "1.0", "ready", load_s=2.5), SlotInfo("m", "1.0", "failed"), SlotInfo("n", "2", "ready", load_s=1.0)),
        machine=HostLoad(0.25, 1.0, 100 * MIB, 400 * MIB),
    )
]


GPU_USE = SlotDeviceUse(300 * MIB, 0.4, 0.1, 1200 * MIB)


def test_each_gpu_with_a_slot_is_shown_once_per_machine() -> None:
    slots = [SlotInfo("m", "1", "ready", device=f"cuda:{number}", device_use=GPU_USE) for number in (0, 0, 1)]
    workers = [WorkerInfo("w", "box", 1, 0.0, tuple(slots)), WorkerInfo("v", "other", 2, 0.0, (slots[0],))]
    text = torchserve_text(TorchServeCounts(), [], workers, Path("/")).decode()
    lines = [line for line in text.splitlines() if line.startswith("GPU")]
    assert len(lines) == 9
    assert 'GPUUtilization{Level="Host",DeviceId="0",Hostname="box",} 40.0' in lines
    assert 'GPUMemoryUsed{Level="Host",DeviceId="1",Hostname="box",} 300.0' in lines
    assert 'GPUMemoryUtilization{Level="Host",DeviceId="0",Hostname="other",} 25.0' in lines
    assert "GPU" not in told().decode()


def told() -> bytes:
    counts = TorchServeCounts()
    counts.count_request("m", "")
    counts.count_request("m", "2")
    counts.count_answer("m", "2", BATCH, 0.25)
    return torchserve_text(counts, [(200, 3.0), (201, 1.0), (404, 2.0), (503, 1.0), (499, 1.0)], WORKERS, Path("/"))


def values(text: bytes) -> dict[str, float]:
    return {line.split("{")[0]: float(line.split()[-1]) for line in text.decode().splitlines() if not line.startswith("#")}


def test_a_sample_is_written_as_torchserve_writes_it() -> None:
    family = TorchServeFamily("CPUUtilization", "gauge", "Percent", [(of_host('a"b'), 101.0)])
    assert list(family.lines()) == [
        "# HELP CPUUtilization Torchserve prometheus gauge metric with unit: Percent",
        "# TYPE CPUUtilization gauge",
        'CPUUtilization{Level="Host",Hostname="a\\"b",} 101.0',
    ]


def test_requests_and_answers_are_counted_by_the_version_that_was_asked_for() -> None:
    lines = [line for line in told().decode().splitlines() if line.startswith("ts_")]
    found = {line.split(',hostname="')[0]: float(line.split()[-1]) for line in lines}
    assert found == {
        'ts_inference_requests_total{model_name="m",model_version="default"': 1.0,
        'ts_inference_requests_total{model_name="m",model_version="2"': 1.0,
        'ts_inference_latency_microseconds{model_name="m",model_version="2"': 250_000.0,
        'ts_queue_latency_microseconds{model_name="m",model_version="2"': 50_000.0,
    }


def test_gauges_show_the_last_answer_and_the_machines_of_the_workers() -> None:
    found = values(told())
    assert (found["Requests2XX"], found["Requests4XX"], found["Requests5XX"]) == (4.0, 3.0, 1.0)
    assert [round(found[name]) for name in ("QueueTime", "WorkerThreadTime", "HandlerTime", "PredictionTime")] == [
        50,
        20,
        180,
        200,
    ]
    assert (found["CPUUtilization"], found["MemoryUsed"], found["MemoryAvailable"], found["MemoryUtilization"]) == (
        25.0,
        100.0,
        300.0,
        25.0,
    )
    assert 0.0 < found["DiskUtilization"] <= 100.0


def test_workers_have_torchserves_names() -> None:
    lines = [line for line in told().decode().splitlines() if line.startswith("WorkerLoadTime{")]
    assert lines == [
        'WorkerLoadTime{WorkerName="W-9000-m_1.0",Level="Host",Hostname="box",} 2500.0',
        'WorkerLoadTime{WorkerName="W-9001-n_2",Level="Host",Hostname="box",} 1000.0',
    ]


def test_prometheus_reads_it() -> None:
    samples = [sample for family in text_string_to_metric_families(told().decode()) for sample in family.samples]
    # This parser gives counters an ending that TorchServe's do not have; Prometheus itself leaves names alone.
    found = {sample.name.removesuffix("_total"): sample for sample in samples}
    assert found["Requests2XX"].labels.keys() == {"Level", "Hostname"}
    assert {"ts_inference_requests", "ts_queue_latency_microseconds", "QueueTime", "WorkerLoadTime"} <= found.keys()


def test_a_scrape_can_be_asked_for_some_names() -> None:
    text = told()
    assert only_named(text, ()) == text
    names = ["ts_inference_requests_total", "Requests2XX", "nothing"]
    assert set(values(only_named(text, names))) == {"ts_inference_requests_total", "Requests2XX"}
    assert only_named(text, ["nothing"]) == b""
    ours = b"# HELP penstock_jobs_total Jobs\n# TYPE penstock_jobs_total counter\npenstock_jobs_total 1.0\n"
    assert only_named(ours + text, ["penstock_jobs_total"]) == ours
