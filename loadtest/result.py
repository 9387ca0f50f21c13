"""The result of one benchmark, as the JSON report tells it. Times in ms where so named; None: not known, `notes` say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """One measured quantity, in milliseconds."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Over the measured time. Latency counts from the intended moment, of good (2xx) answers; `throughput_rps` are those that
    came within the measured time; `goodput_rps` those within the deadline. `errors`: answers by status, `lost` connections and
    `unfinished` calls."""

    seconds: float
    offered: int
    offered_rps: float
    answered: int
    throughput_rps: float
    goodput_rps: float
    error_rate: float
    errors: dict[str, int]
    said: dict[str, str]
    latency: Spread | None


@dataclass(frozen=True, slots=True)
class Second:
    """One second of the measured time; percentiles of the calls meant to leave in it, answers and errors as they came."""

    at_s: float
    offered: int
    answered: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class RateStep:
    """One step of the offered rate. `rate` is the prescribed one, None where a closed loop prescribes none."""

    rate: float | None
    seconds: float
    offered_rps: float
    throughput_rps: float
    goodput_rps: float
    errors: int
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Inside:
    """What the server told of itself. Queue wait: accepted to started. Run: the model's stages, of the item's whole batch.

    `batch_sizes` and `reasons` count batches (each answer stands for its part of one). `stages_ms` are means per call; they and
    `rest` add up to the mean latency. `busy_share`: of the ready slots' time, spent in the model's stages.
    """

    source: str
    answers: int
    queue: Spread | None = None
    run: Spread | None = None
    batch_sizes: dict[int, float] = field(default_factory=dict)
    reasons: dict[str, float] = field(default_factory=dict)
    stages_ms: dict[str, float] = field(default_factory=dict)
    busy_share: float | None = None
    counted: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """`cpu`: share of one core; 1.5 is a core and a half."""

    role: str
    pid: int
    cpu_mean: float
    cpu_max: float
    memory_mean_bytes: float
    memory_max_bytes: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A GPU in use here. `busy` from 0 to 1, as the driver tells; None where it does not."""

    name: str
    busy_mean: float | None
    busy_max: float | None
    memory_mean_bytes: float
    memory_max_bytes: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Generator:
    """The load generator about itself. `limits` is empty unless it shaped the result: one sentence per reason."""

    processes: int
    ceiling_rps: float | None
    cpu_us_per_call: float
    core_share: float
    lag_p99_ms: float | None
    starved: int
    limits: list[str]

    @property
    def limited(self) -> bool:
        return bool(self.limits)


@dataclass(frozen=True, slots=True)
class TestSubject:
    """What was measured, and how it stood. `policy` and the slots are penstock's only."""

    target: str
    url: str
    model: str
    client: str
    version: str = ""
    method: str = "POST"
    bodies: int = 1
    body_bytes: float = 0.0
    slots: int | None = None
    max_batch_size: int | None = None
    max_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class LoadTestResult:
    """`load` repeats what was asked for. `generator_limited` says that the server must not be judged by this result.
    `foreign_share`: of this machine's CPU, taken by processes that are no part of the measurement."""

    subject: TestSubject
    load: dict[str, Any]
    outcome: LoadOutcome
    generator: Generator
    generator_limited: bool
    stopped: bool
    inside: Inside | None
    processes: list[ProcessUse]
    devices: list[DeviceUse]
    steps: list[RateStep]
    series: list[Second]
    cpu_series: dict[str, list[float]]
    cdf: list[tuple[float, float]]
    machine: Mapping[str, Any]
    foreign_share: float
    notes: list[str]
