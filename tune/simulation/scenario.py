"""The inputs of a simulation: the load, the batching policy, and a device that times batches. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Protocol

from penstock.model_spec import BatchPolicy


@dataclass(frozen=True, slots=True)
class BatchSeconds:
    """The seconds of one batch in the three threads of a child; only inference occupies the device."""

    inference_s: float
    preprocess_s: float = 0.0
    postprocess_s: float = 0.0


class BatchTimes(Protocol):
    """The times of batches. `expected_s`: only the inference, which a worker learns."""

    def expected_s(self, size: int) -> float: ...

    def draw(self, size: int, chance: random.Random) -> BatchSeconds: ...


@dataclass(frozen=True, slots=True)
class Costs:
    """The seconds of each batch beside its run: the claim at the store, and from the claim to the child's first stage."""

    claim_s: float = 0.0
    feed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """A batch of b takes `base_s + b * item_s`, multiplied by a normal factor with mean 1 and deviation `noise`."""

    base_s: float = 0.005
    item_s: float = 0.0005
    noise: float = 0.03

    def expected_s(self, size: int) -> float:
        return self.base_s + self.item_s * size

    def draw(self, size: int, chance: random.Random) -> BatchSeconds:
        return BatchSeconds(self.expected_s(size) * max(0.1, chance.gauss(1.0, self.noise)))


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load` is the offered rate as a share of the peak, at which every slot runs full batches back to back. `arrivals`: the
    moments at which requests arrive, in order; empty: Poisson arrivals at the `load`.
    """

    load: float
    device: BatchTimes = field(default_factory=SimulatedDevice)
    policy: BatchPolicy = field(default_factory=lambda: BatchPolicy(max_batch_size=64))
    slots: int = 4
    deadline_s: float = 0.050
    seconds: float = 6.0
    warm_up_s: float = 1.0
    seed: int = 1
    costs: Costs = field(default_factory=Costs)
    arrivals: tuple[float, ...] = ()

    @property
    def peak_rps(self) -> float:
        size = self.policy.max_batch_size
        return self.slots * size / self.device.expected_s(size)
