"""Everything that `penstock tune` found, and its JSON. All durations in seconds unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import BadRequest

FORMAT = 1


class ConfigurationVerdict(StrEnum):
    """What became of a configuration."""

    WINNER = "winner"  # confirmed, the best of all
    CONFIRMED = "confirmed"  # run under real load, and not the best
    PRUNED = "pruned"  # ruled out by what was measured, before any simulation
    LOST = "lost"  # simulated, and not good enough to be confirmed


@dataclass(frozen=True, slots=True)
class Goal:
    """`percentile` of the latency must stay within `limit_s`. `min_rate`: as many requests per second are enough.

    `rate`: the question is how many workers this many requests per second need.
    """

    percentile: float = 99.0
    limit_s: float = 0.1
    min_rate: float | None = None
    rate: float | None = None
    tolerance: float = 0.01
    price_per_hour: float | None = None

    @property
    def text(self) -> str:
        return f"p{self.percentile:g} <= {self.limit_s * 1e3:g} ms"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How one child runs the model: all that changes how long a batch takes, and the answers. Fields as in penstock.toml.

    `threads` None: an equal share of the cores.
    """

    device: str = "cpu"
    runtime: str = "auto"
    precision: str = "fp32"
    compile: str = "off"
    threads: int | None = None
    pinning: str = "cores"

    @property
    def label(self) -> str:
        parts = [self.device, self.runtime if self.runtime != "auto" else "", self.precision]
        parts += ["" if self.compile == "off" else f"compile {self.compile}"]
        parts += ["" if self.threads is None else f"{self.threads} threads"]
        parts += ["" if self.pinning == "cores" else "unpinned"]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Choice:
    """One configuration. `workers` are all children of the model together; on GPUs, `workers` per device."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    batch_size: int = 8
    max_wait_s: float = 0.010
    workers: int = 1
    placement: str = "dedicated"

    @property
    def label(self) -> str:
        wait = f"wait {self.max_wait_s * 1e3:g} ms"
        shared = " shared" if self.placement != "dedicated" else ""
        return f"batch {self.batch_size}, {self.workers} x {self.engine.label}{shared}, {wait}"


@dataclass(frozen=True, slots=True)
class BatchTime:
    """A batch of `size`: medians of each stage, and `quantiles_s` of the whole in the device, evenly spaced from 0 to 1."""

    size: int
    inference_s: float
    preprocess_s: float = 0.0
    postprocess_s: float = 0.0
    quantiles_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """How far answers are from those of the reference engine: the largest difference found, and that over the largest value.

    `differing`: answers that are no numbers and not equal, of `compared` values.
    """

    reference: str
    absolute: float = 0.0
    relative: float = 0.0
    differing: int = 0
    compared: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """An engine with `workers` children side by side, each running batches back to back. Memory is of one child.

    `device_memory_bytes` 0: not on a GPU, or not told. `error`: why it could not be measured; then the rest is empty.
    """

    engine: EngineSettings
    workers: int = 1
    times: tuple[BatchTime, ...] = ()
    memory_bytes: int = 0
    device_memory_bytes: int = 0
    load_s: float = 0.0
    drift: Drift | None = None
    error: str = ""
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a configuration under Poisson arrivals at `offered_rps`. `tail_ms` is the goal's percentile.

    `low` and `high` bound the throughput that keeps the goal, from several seeds; 0: not known.
    """

    offered_rps: float
    throughput_rps: float
    p50_ms: float
    p99_ms: float
    tail_ms: float
    mean_batch: float = 0.0
    low_rps: float = 0.0
    high_rps: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of the space and all that is known of it. `stages_ms` are mean milliseconds per job by stage (queue,
    preprocess, inference, postprocess, rest). `predicted` is from simulation, `confirmed` from real load."""

    choice: Choice
    verdict: ConfigurationVerdict
    why: str
    predicted: Figures | None = None
    confirmed: Figures | None = None
    rerun: Figures | None = None
    stages_ms: dict[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    device_memory_bytes: int = 0
    drift: Drift | None = None
    cost_per_million: float | None = None


@dataclass(frozen=True, slots=True)
class Overheads:
    """What a request costs beside its batch, measured with a model that does nothing. `claim_s`: a question to the store;
    `feed_s`: from the claim to the start of the batch; `request_s`: network, gateway and store, spent outside the slot.

    `per_item_s` and `per_batch_s`: what one request, and one batch, take of all that is not the model when there are many; the
    throughput of every configuration is bounded by them.
    """

    claim_s: float = 0.0
    feed_s: float = 0.0
    request_s: float = 0.0
    per_item_s: float = 0.0
    per_batch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """How many `workers` (children; `devices` of them where the model runs on GPUs) `rate` needs in `choice`.

    `error` is a share: the answer holds for rates within it. `basis` says where it comes from.
    """

    rate: float
    workers: int
    devices: int
    choice: Choice
    predicted: Figures
    error: float
    basis: str
    workers_low: int
    workers_high: int


@dataclass(frozen=True, slots=True)
class SearchTime:
    """Seconds of the whole search by step, and how many configurations met real load of how many there are."""

    total_s: float = 0.0
    budget_s: float = 0.0
    steps_s: dict[str, float] = field(default_factory=dict)
    confirmed: int = 0
    configurations: int = 0

    @property
    def visited_share(self) -> float:
        return self.confirmed / self.configurations if self.configurations else 0.0


@dataclass(frozen=True, slots=True)
class TuneResult:
    """`space` maps a dimension to its values as searched. Of `configurations` at most one is the winner."""

    model: str
    version: str
    goal: Goal
    space: dict[str, list[Any]]
    configurations: tuple[Configuration, ...]
    measured: tuple[Measured, ...] = ()
    overheads: Overheads = field(default_factory=Overheads)
    capacity: CapacityPlan | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    spent: SearchTime = field(default_factory=SearchTime)
    notes: tuple[str, ...] = ()
    sample: str = ""
    format: int = FORMAT

    @property
    def winner(self) -> Configuration | None:
        return next((one for one in self.configurations if one.verdict is ConfigurationVerdict.WINNER), None)


def to_json(result: TuneResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2)


def from_json(data: bytes) -> TuneResult:
    """Raises `BadRequest` for what is no result of this format."""
    try:
        result = msgspec.json.decode(data, type=TuneResult)
    except msgspec.DecodeError as fault:
        raise BadRequest(f"no result of penstock tune: {fault}", hint="name a file that penstock tune wrote") from fault
    if result.format != FORMAT:
        raise BadRequest(f"a result of format {result.format}, this is {FORMAT}", hint="run penstock tune again")
    return result


def read_result(path: Path) -> TuneResult:
    """Raises `BadRequest`."""
    try:
        data = path.read_bytes()
    except OSError as fault:
        raise BadRequest(f"{path} cannot be read: {fault.strerror}", hint="name a file that penstock tune wrote") from fault
    return from_json(data)
