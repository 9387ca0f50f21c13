"""The report as one line of a CSV file. The first columns are those of TorchServe's benchmark report, ours follow."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import BadRequest
from penstock.loadtest.result import DeviceUse, LoadTestResult, Spread

Cell = str | int | float | None


def columns() -> list[str]:
    return list(_CELLS)


def row(result: LoadTestResult) -> dict[str, Cell]:
    """Latencies are in ms, CPU and memory in per cent as in TorchServe's report; None: not known."""
    return {name: _plain(cell(result)) for name, cell in _CELLS.items()}


def append_row(result: LoadTestResult, path: Path) -> None:
    """Appends a line to the file, which gets a header if it is new. Raises `BadRequest` if the file has other columns."""
    fresh = not path.exists() or path.stat().st_size == 0
    if not fresh:
        _same_columns(path)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns())
        if fresh:
            writer.writeheader()
        writer.writerow(row(result))


def _same_columns(path: Path) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file), [])
    if header != columns():
        raise BadRequest(f"{path} has other columns than a benchmark's", hint="name another file with --csv")


def _plain(value: Any) -> Cell:
    return round(value, 4) if isinstance(value, float) else value


def _of(part: Callable[[LoadTestResult], Any], field: str) -> Callable[[LoadTestResult], Cell]:
    """A field of a part of the result that may be missing."""
    return lambda result: getattr(part(result), field, None)


def _latency(result: LoadTestResult) -> Spread | None:
    return result.outcome.latency


def _queue(result: LoadTestResult) -> Spread | None:
    return result.inside.queue if result.inside else None


def _run(result: LoadTestResult) -> Spread | None:
    return result.inside.run if result.inside else None


def _stage(name: str) -> Callable[[LoadTestResult], Cell]:
    return lambda result: result.inside.stages_ms.get(name) if result.inside else None


def _mean_run(result: LoadTestResult) -> Cell:
    run = _run(result)
    return run.mean_ms if run else None


def _failed(result: LoadTestResult) -> int:
    return sum(result.outcome.errors.values())


def _cpu_percent(result: LoadTestResult) -> Cell:
    """All processes of the server together; 100 is one core."""
    server = [use.cpu_mean for use in result.processes if use.role != "generator"]
    return 100.0 * sum(server) if server else None


def _memory_percent(result: LoadTestResult) -> Cell:
    server = [use.memory_mean_bytes for use in result.processes if use.role != "generator"]
    whole = result.machine.get("memory_bytes")
    return 100.0 * sum(server) / whole if server and whole else None


def _gpu(value: Callable[[DeviceUse], float | None]) -> Callable[[LoadTestResult], Cell]:
    """The mean over the devices with a known value."""

    def cell(result: LoadTestResult) -> Cell:
        known_values = [known for known in map(value, result.devices) if known is not None]
        return sum(known_values) / len(known_values) if known_values else None

    return cell


def _concurrency(result: LoadTestResult) -> Cell:
    closed = result.load.get("closed")
    return int(closed) if closed else None


def _delay_ms(result: LoadTestResult) -> Cell:
    wait_s = result.subject.max_wait_s
    return None if wait_s is None else wait_s * 1e3


_CELLS: dict[str, Callable[[LoadTestResult], Cell]] = {
    "Benchmark": lambda result: "penstock bench",
    "Batch size": lambda result: result.subject.max_batch_size,
    "Batch delay": _delay_ms,
    "Workers": lambda result: result.subject.slots,
    "Model": lambda result: result.subject.model,
    "Concurrency": _concurrency,
    "Input": lambda result: result.load.get("body"),
    "Requests": lambda result: result.outcome.offered,
    "TS failed requests": _failed,
    "TS throughput": lambda result: result.outcome.throughput_rps,
    "TS latency P50": _of(_latency, "p50_ms"),
    "TS latency P90": _of(_latency, "p90_ms"),
    "TS latency P99": _of(_latency, "p99_ms"),
    "TS latency mean": _of(_latency, "mean_ms"),
    "TS error rate": lambda result: 100.0 * result.outcome.error_rate,
    "Model_p50": _of(_run, "p50_ms"),
    "Model_p90": _of(_run, "p90_ms"),
    "Model_p99": _of(_run, "p99_ms"),
    "predict_mean": _stage("inference"),
    "handler_time_mean": _mean_run,
    "waiting_time_mean": _of(_queue, "mean_ms"),
    # TorchServe's time between front end and worker has no counterpart here.
    "worker_thread_mean": lambda result: None,
    "cpu_percentage_mean": _cpu_percent,
    "memory_percentage_mean": _memory_percent,
    "gpu_percentage_mean": _gpu(lambda use: None if use.busy_mean is None else 100.0 * use.busy_mean),
    "gpu_memory_percentage_mean": _gpu(lambda use: 100.0 * use.memory_mean_bytes / use.memory_bytes),
    "gpu_memory_used_mean": _gpu(lambda use: use.memory_mean_bytes / 2**20),
    "handler_preprocess_mean": _stage("preprocess"),
    "handler_inference_mean": _stage("inference"),
    "handler_postprocess_mean": _stage("postprocess"),
    "queue_p50": _of(_queue, "p50_ms"),
    "queue_p90": _of(_queue, "p90_ms"),
    "queue_p99": _of(_queue, "p99_ms"),
    "latency_p95": _of(_latency, "p95_ms"),
    "latency_p99.9": _of(_latency, "p999_ms"),
    "latency_max": _of(_latency, "max_ms"),
    "offered": lambda result: result.outcome.offered_rps,
    "goodput": lambda result: result.outcome.goodput_rps,
    "slots_busy_percent": lambda result: (
        None if result.inside is None or result.inside.busy_share is None else 100.0 * result.inside.busy_share
    ),
    "target": lambda result: result.subject.target,
    "client": lambda result: result.subject.client,
    "version": lambda result: result.subject.version,
    "load": lambda result: result.load.get("rate") or result.load.get("trace"),
    "generator_limited": lambda result: str(result.generator_limited).lower(),
    "date": lambda result: result.machine.get("date"),
}
