"""The result of `penstock tune`, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from penstock.model_spec import LearnedCalls

FORMAT = 1


class ConfigurationVerdict(StrEnum):
    """What the search decided about a configuration."""

    WINNER = "winner"  # the best under real load
    CONFIRMED = "confirmed"  # kept the goal under real load, but is not the best
    PRUNED = "pruned"  # ruled out by measurements, before any simulation
    LOST = "lost"  # simulated, and not good enough to get real load, or missed the goal under it


@dataclass(frozen=True, slots=True)
class Goal:
    """`percentile` of the latency must stay within `limit_s`. `min_rate`: the requests per second that are enough.

    `rate`: requests per second for which the search finds the number of slots. `tolerance`: the accepted drift of answers.
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
    """How one child runs the model: the settings that change the time of a batch, and its answers. Fields as in penstock.toml.

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
    """One configuration. `slots`: all children of the model together; on GPUs, the children per device."""

    engine: EngineSettings = field(default_factory=EngineSettings)
    batch_size: int = 8
    max_wait_s: float = 0.010
    slots: int = 1
    placement: str = "dedicated"

    @property
    def label(self) -> str:
        wait = f"wait {self.max_wait_s * 1e3:g} ms"
        shared = " shared" if self.placement != "dedicated" else ""
        return f"batch {self.batch_size}, {self.slots} x {self.engine.label}{shared}, {wait}"


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The time of a batch of `size`: the median of each stage, and evenly spaced quantiles of the inference, from 0 to 1."""

    size: int
    inference_s: float
    preprocess_s: float = 0.0
    postprocess_s: float = 0.0
    quantiles_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """The difference of answers from the reference engine's: the largest one, also relative to the largest value.

    `differing`: of `compared` values, those that are not numbers and differ.
    """

    reference: str
    absolute: float = 0.0
    relative: float = 0.0
    differing: int = 0
    compared: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """An engine with `slots` children side by side, each running batches back to back. Memory is that of one child.

    `device_memory_bytes` 0: not on a GPU, or not known. `calls`: what a child learned about the calls that it cuts batches
    into, if its batches took long enough. `error`: why the engine could not be measured; the rest is then empty.
    """

    engine: EngineSettings
    slots: int = 1
    times: tuple[BatchTime, ...] = ()
    memory_bytes: int = 0
    device_memory_bytes: int = 0
    load_s: float = 0.0
    drift: Drift | None = None
    error: str = ""
    took_s: float = 0.0
    calls: LearnedCalls | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a configuration under Poisson arrivals at `offered_rps`. `tail_ms` is the goal's percentile.

    `low_rps` and `high_rps` bound, over several seeds, the rate that keeps the goal; 0: not known.
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
    """One point of the space, with its figures. `predicted` is from simulation, `confirmed` from real load, `rerun` from
    the winner's second run. `stages_ms`: mean milliseconds per job in queue, preprocess, inference, postprocess and rest."""

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
    """The cost of a request besides its batch, measured with a model that does nothing. `claim_s`: a claim at the store;
    `feed_s`: from the claim to the start of the batch; `request_s`: network, gateway and store, outside the slot.

    `per_item_s` and `per_batch_s`: the time per request, and per batch, of everything but the model at full load. These bound
    the throughput of every configuration.
    """

    claim_s: float = 0.0
    feed_s: float = 0.0
    request_s: float = 0.0
    per_item_s: float = 0.0
    per_batch_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RateCapacity:
    """The `slots` (children), and on GPUs the `devices`, that a `rate` needs with `choice`.

    `error`: the share by which predicted rates may be wrong; `basis`: its origin. `slots_low` and `slots_high` are
    the numbers of slots at the two ends of the error.
    """

    rate: float
    slots: int
    devices: int
    choice: Choice
    predicted: Figures
    error: float
    basis: str
    slots_low: int
    slots_high: int


@dataclass(frozen=True, slots=True)
class SearchTime:
    """The seconds of the search, in total and by step, and the number of `configurations` confirmed under real load."""

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
    """`space` maps each dimension to its searched values. At most one of the `configurations` is the winner."""

    model: str
    version: str
    goal: Goal
    space: dict[str, list[Any]]
    configurations: tuple[Configuration, ...]
    measured: tuple[Measured, ...] = ()
    overheads: Overheads = field(default_factory=Overheads)
    capacity: RateCapacity | None = None
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
