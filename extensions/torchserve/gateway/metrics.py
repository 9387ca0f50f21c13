"""What a gateway counts under TorchServe's names, as TorchServe writes it: for dashboards and rules that ask for them."""

from __future__ import annotations

import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.gateway.jobs.predict import run_s
from penstock.job import BatchRecord
from penstock.model_spec import HostLoad, SlotDeviceUse, WorkerInfo

UNVERSIONED = "default"
# The ending of counters' names.
COUNTED = "_total"
_MIB, _GIB = 1024.0**2, 1024.0**3
# The first number of TorchServe's names of workers.
_FIRST_WORKER = 9000
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TorchServeFamily:
    """One name with its samples. `kind` is counter or gauge, `unit` as TorchServe's help text has it.

    A counter whose name lacks the ending that Prometheus asks of counters has no declared type, as on workers' pages: these
    may be read as OpenMetrics, which refuses such a counter.
    """

    name: str
    kind: str
    unit: str
    samples: Sequence[tuple[Labels, float]] = ()

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} Torchserve prometheus {self.kind} metric with unit: {self.unit}"
        yield f"# TYPE {self.name} {'untyped' if self.kind == 'counter' and not self.name.endswith(COUNTED) else self.kind}"
        for labels, value in self.samples:
            inner = "".join(f'{name}="{_escaped(text)}",' for name, text in labels)
            yield f"{self.name}{{{inner}}} {value}"


class TorchServeCounts:
    """Predictions of one gateway process, by model and by the version that was asked for. The sums include answers only."""

    def __init__(self) -> None:
        self.host = socket.gethostname()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._total_us: Counter[tuple[str, str]] = Counter()
        self._queue_us: Counter[tuple[str, str]] = Counter()
        self._queue_ms, self._worker_ms = 0.0, 0.0
        self._handler_ms: dict[str, float] = {}
        self._predict_ms: dict[str, float] = {}

    def count_request(self, model: str, version: str) -> None:
        self._requests[model, version or UNVERSIONED] += 1

    def count_answer(self, model: str, version: str, batch: BatchRecord | None, total_s: float) -> None:
        """`batch`: the one that the answered job ran in; None if it is not known, and then nothing counts as waiting."""
        ran_s = total_s if batch is None else run_s(batch)
        queue_s = max(0.0, total_s - ran_s)
        self._total_us[model, version or UNVERSIONED] += round(total_s * 1e6)
        self._queue_us[model, version or UNVERSIONED] += round(queue_s * 1e6)
        self._queue_ms = queue_s * 1e3
        if batch is not None:
            self._worker_ms = batch.decode_s * 1e3
            self._predict_ms[model] = ran_s * 1e3
            self._handler_ms[model] = (ran_s - batch.decode_s) * 1e3

    def families(self) -> Iterator[TorchServeFamily]:
        yield self._by_version("ts_inference_requests_total", "Count", self._requests)
        yield self._by_version("ts_inference_latency_microseconds", "Microseconds", self._total_us)
        yield self._by_version("ts_queue_latency_microseconds", "Microseconds", self._queue_us)
        for name, value in (("QueueTime", self._queue_ms), ("WorkerThreadTime", self._worker_ms)):
            yield TorchServeFamily(name, "gauge", "Milliseconds", [(of_host(self.host), value)])
        for name, last in (("HandlerTime", self._handler_ms), ("PredictionTime", self._predict_ms)):
            yield TorchServeFamily(name, "gauge", "ms", [(self._of_model(model), value) for model, value in list(last.items())])

    def _by_version(self, name: str, unit: str, counts: Mapping[tuple[str, str], int]) -> TorchServeFamily:
        samples = [
            ((("model_name", model), ("model_version", version), ("hostname", self.host)), float(count))
            for (model, version), count in list(counts.items())
        ]
        return TorchServeFamily(name, "counter", unit, samples)

    def _of_model(self, model: str) -> Labels:
        return ("ModelName", model), ("Level", "Model"), ("Hostname", self.host)


def of_host(host: str, *before: tuple[str, str]) -> Labels:
    return *before, ("Level", "Host"), ("Hostname", host)


def answer_families(answers: Iterable[tuple[int, float]], host: str) -> Iterator[TorchServeFamily]:
    """`answers`: statuses of HTTP, and how many responses had each."""
    counts: Counter[int] = Counter()
    for status, count in answers:
        counts[status // 100] += int(count)
    for first in (2, 4, 5):
        yield TorchServeFamily(f"Requests{first}XX", "counter", "Count", [(of_host(host), float(counts[first]))])


def worker_families(workers: Sequence[WorkerInfo]) -> Iterator[TorchServeFamily]:
    """How long the slots took to load, and how busy the machines of the workers and their GPUs are."""
    slots = [(worker, slot) for worker in workers for slot in worker.slots if slot.state == "ready"]
    named = [
        (of_host(worker.host, ("WorkerName", f"W-{_FIRST_WORKER + index}-{slot.model}_{slot.version}")), slot.load_s * 1e3)
        for index, (worker, slot) in enumerate(slots)
    ]
    yield TorchServeFamily("WorkerLoadTime", "gauge", "Milliseconds", named)
    machines = {worker.host: worker.machine for worker in workers if worker.machine is not None}
    for name, unit, value_of in _MACHINE:
        samples = [(of_host(host), value_of(machine)) for host, machine in machines.items()]
        yield TorchServeFamily(name, "gauge", unit, samples)
    yield from _gpu_families(workers)


def _gpu_families(workers: Sequence[WorkerInfo]) -> Iterator[TorchServeFamily]:
    """As they were at the last beats. A device is named as its worker sees it, by its number."""
    uses = {
        (slot.device.rpartition(":")[2], worker.host): slot.device_use
        for worker in workers
        for slot in worker.slots
        if slot.device_use is not None
    }
    for name, unit, value_of in _GPU:
        samples = [
            ((("Level", "Host"), ("DeviceId", device), ("Hostname", host)), value)
            for (device, host), use in sorted(uses.items())
            if (value := value_of(use)) is not None
        ]
        if samples:
            yield TorchServeFamily(name, "gauge", unit, samples)


def _used_percent(use: SlotDeviceUse) -> float | None:
    return 100.0 * use.used_bytes / use.total_bytes if use.total_bytes else None


_GPU: tuple[tuple[str, str, Callable[[SlotDeviceUse], float | None]], ...] = (
    ("GPUUtilization", "Percent", lambda use: None if use.share is None else use.share * 100.0),
    ("GPUMemoryUsed", "Megabytes", lambda use: use.used_bytes / _MIB),
    ("GPUMemoryUtilization", "Percent", _used_percent),
)
_MACHINE = (
    ("CPUUtilization", "Percent", lambda machine: machine.cpu_share * 100.0),
    ("MemoryUsed", "Megabytes", lambda machine: machine.memory_used_bytes / _MIB),
    ("MemoryAvailable", "Megabytes", lambda machine: _free_bytes(machine) / _MIB),
    ("MemoryUtilization", "Percent", lambda machine: 100.0 * machine.memory_used_bytes / max(1, machine.memory_total_bytes)),
)


def _free_bytes(machine: HostLoad) -> int:
    return machine.memory_total_bytes - machine.memory_used_bytes


def disk_families(folder: Path, host: str) -> Iterator[TorchServeFamily]:
    """The disk of the gateway's own files."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    usage = shutil.disk_usage(nearest)
    values = (
        ("DiskUsage", "Gigabytes", usage.used / _GIB),
        ("DiskAvailable", "Gigabytes", usage.free / _GIB),
        ("DiskUtilization", "Percent", 100.0 * usage.used / max(1, usage.total)),
    )
    for name, unit, value in values:
        yield TorchServeFamily(name, "gauge", unit, [(of_host(host), value)])


def torchserve_text(
    counts: TorchServeCounts, answers: Iterable[tuple[int, float]], workers: Sequence[WorkerInfo], folder: Path
) -> bytes:
    """TorchServe's part of a scrape."""
    families = [
        *answer_families(answers, counts.host),
        *counts.families(),
        *worker_families(workers),
        *disk_families(folder, counts.host),
    ]
    return "".join(f"{line}\n" for family in families for line in family.lines()).encode()


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
