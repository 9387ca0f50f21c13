"""The result of a load test; the JSON report has the same fields. None: not known, and `notes` say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of one measured quantity."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Figures over the measured time. Latency is that of good (2xx) answers, from the moment the call was meant to leave.

    `throughput_rps` counts good answers that came within the measured time, `goodput_rps` those within the deadline. `errors`
    counts other answers by status, `lost` connections and `unfinished` calls; `said` holds the first body of each status.
    """

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
    """One second of the measured time. Percentiles: of the calls due in this second. Answers and errors count in the second of
    their arrival.
    """

    at_s: float
    offered: int
    answered: int
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True)
class RateStep:
    """One step of the offered rate. `rate` is the prescribed rate; None: a closed loop prescribes none."""

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
    """The server's own figures. `queue`: from accepted to started. `run`: the model's stages, of the item's whole batch.

    `batch_sizes` and `reasons` count batches: an answer from a batch of n counts as 1/n. `stages_ms` are means per call, which
    add up, with `rest`, to the mean latency. `busy_share`: the share of the ready slots' time spent in the model's stages.
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
    """`cpu_mean` and `cpu_max` are in cores: 1.5 is a core and a half."""

    role: str
    pid: int
    cpu_mean: float
    cpu_max: float
    memory_mean_bytes: float
    memory_max_bytes: float


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A GPU of this machine. `busy_mean` and `busy_max` are the driver's, from 0 to 1; None: the driver does not know."""

    name: str
    busy_mean: float | None
    busy_max: float | None
    memory_mean_bytes: float
    memory_max_bytes: float
    memory_bytes: float


@dataclass(frozen=True, slots=True)
class Generator:
    """The load generator's own figures. `limits`: one sentence per reason why the generator itself shaped the result."""

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
    """The measured subject. Slots, batch size and wait are known only for penstock."""

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
    """`load` repeats the options. `generator_limited`: this result must not be used to judge the server. `foreign_share`: the
    share of this machine's CPU that processes outside the measurement took."""

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
