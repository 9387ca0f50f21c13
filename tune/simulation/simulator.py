"""The batching policy under load without a device: the workers' own Batcher and the memory store's claim on a made-up clock.

`python -m penstock.tune.simulation.simulator` prints, per offered load, what share of the peak was answered on time.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.broker.memory.store import MemoryStore
from penstock.broker.records import BatchStamp, Claim, ClaimRequest, Ending, NewJob
from penstock.job import JobState, Payload
from penstock.job_id import new_job_id
from penstock.loadtest.generator.summary import percentile
from penstock.model_spec import BatchPolicy, ModelSpec
from penstock.workers.slot.batcher import Batcher, ChildLoad
from penstock.workers.slot.latency import Latency

_MODEL = "simulated"
_VERSION = "1"
_NOTHING = Payload("application/json")
_SWEEP_S = 1.0
_TICK_S = 1e-6
# Jobs are kept no longer than the clock needs them: the memory store looks at all it holds.
_KEPT_S = 0.5


@dataclass(frozen=True, slots=True)
class BatchSeconds:
    """Seconds of one batch in the three threads of a child; only the middle one holds the device."""

    inference_s: float
    preprocess_s: float = 0.0
    postprocess_s: float = 0.0


class BatchTimes(Protocol):
    """How long batches take. `expected_s` is the inference alone, as a worker learns it."""

    def expected_s(self, size: int) -> float: ...

    def draw(self, size: int, chance: random.Random) -> BatchSeconds: ...


@dataclass(frozen=True, slots=True)
class Costs:
    """Of each batch beside its run: a question to the store, and from its answer to the child's first stage. Seconds."""

    claim_s: float = 0.0
    feed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """A batch of b takes `base_s + b * item_s`, times a normal factor of deviation `noise`."""

    base_s: float = 0.005
    item_s: float = 0.0005
    noise: float = 0.03

    def expected_s(self, size: int) -> float:
        return self.base_s + self.item_s * size

    def draw(self, size: int, chance: random.Random) -> BatchSeconds:
        return BatchSeconds(self.expected_s(size) * max(0.1, chance.gauss(1.0, self.noise)))


@dataclass(frozen=True, slots=True)
class Scenario:
    """`load` is the offered rate as a share of the peak, which is every worker running full batches back to back."""

    load: float
    device: BatchTimes = field(default_factory=SimulatedDevice)
    policy: BatchPolicy = field(default_factory=lambda: BatchPolicy(max_batch_size=64))
    workers: int = 4
    deadline_s: float = 0.050
    seconds: float = 6.0
    warm_up_s: float = 1.0
    seed: int = 1
    costs: Costs = field(default_factory=Costs)

    @property
    def peak_rps(self) -> float:
        size = self.policy.max_batch_size
        return self.workers * size / self.device.expected_s(size)


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """`on_time` is a share of what arrived, `goodput` of the peak; device time per item that ran, in milliseconds."""

    on_time: float
    goodput: float
    device_ms_per_item: float
    p50_ms: float
    p99_ms: float
    mean_batch: float
    reasons: dict[str, int]


@dataclass(slots=True)
class SimulatedBatch:
    """On its way through one slot's child. `ready_at`: its preprocessing ends. `fresh`: it found an idle child."""

    claim: Claim
    run: BatchSeconds
    given_at: float
    ready_at: float
    fresh: bool
    began_at: float = 0.0


class SimulatedSlot:
    """One child process: a batch at the device, at most one behind it."""

    def __init__(self, name: str, batcher: Batcher) -> None:
        self.name = name
        self.batcher = batcher
        self.claims: deque[Claim] = deque()
        # Those not yet at the device, the one there, and those that only have to be postprocessed.
        self.waiting: deque[SimulatedBatch] = deque()
        self.running: SimulatedBatch | None = None
        self.leaving: deque[SimulatedBatch] = deque()
        self.since = 0.0
        self.ask_at = 0.0
        self.prepared_at = 0.0
        self.completed_at = 0.0

    def busy(self) -> ChildLoad:
        size = len(self.claims[0].jobs) if self.claims else 0
        return ChildLoad(len(self.claims), size, self.since, alone=any(claim.reason == "solo" for claim in self.claims))


class Simulation:
    """One run of one scenario. Events: `arrive`, `ask` (a slot's timer), `ready` (preprocessed), `end` (of a batch at the
    device), `done` (postprocessed), `sweep`."""

    def __init__(self, scenario: Scenario, tally: Counter) -> None:
        self._scenario = scenario
        self._random = random.Random(scenario.seed)
        self._now = 0.0
        self._store = MemoryStore(clock=lambda: self._now)
        self._slots = [SimulatedSlot(f"slot-{number}", self._batcher()) for number in range(scenario.workers)]
        self._events: list[tuple[float, int, str, SimulatedSlot | None]] = []
        self._order = itertools.count()
        self._nonces = itertools.count()
        # As the store does: an asker that got nothing is woken at this depth.
        self._wake_at: int | None = 1
        self._tally = tally

    def run(self) -> None:
        self._at(self._gap(), "arrive")
        self._at(_SWEEP_S, "sweep")
        for now, _, kind, slot in self._due():
            self._now = now
            self._happen(kind, slot)

    def _due(self) -> Iterator[tuple[float, int, str, SimulatedSlot | None]]:
        while self._events and self._events[0][0] <= self._scenario.seconds:
            yield heapq.heappop(self._events)

    def _happen(self, kind: str, slot: SimulatedSlot | None) -> None:
        if slot is None:
            self._arrive() if kind == "arrive" else self._sweep()
        elif kind == "ready":
            self._start(slot)
        elif kind == "end":
            self._end(slot)
        elif kind == "done":
            self._done(slot)
        elif slot.ask_at == self._now:  # else the timer was set anew meanwhile
            self._ask(slot)

    def _at(self, when: float, kind: str, slot: SimulatedSlot | None = None) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, slot))

    def _gap(self) -> float:
        return self._random.expovariate(self._scenario.load * self._scenario.peak_rps)

    def _batcher(self) -> Batcher:
        latency = Latency()
        limit = self._scenario.policy.max_batch_size
        for size in [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]:
            latency.observe(size, self._scenario.device.draw(size, self._random).inference_s)
        batcher = Batcher(ModelSpec(_MODEL, "", _VERSION, self._scenario.policy), latency)
        batcher.peers = self._scenario.workers - 1
        return batcher

    def _arrive(self) -> None:
        job = NewJob(new_job_id(_MODEL), _VERSION, _NOTHING, deadline_s=self._scenario.deadline_s, result_ttl_s=_KEPT_S)
        [submitted] = self._store.submit([job], max_depth=1 << 30)
        self._tally.arrived(self._now)
        self._at(self._now + self._gap(), "arrive")
        if self._wake_at is not None and submitted.depth >= self._wake_at:
            self._wake_at = None
            self._wake_all()

    def _wake_all(self) -> None:
        for slot in self._slots:
            slot.batcher.on_wake_up()
            self._ask(slot)

    def _sweep(self) -> None:
        self._store.sweep(_MODEL, limit=1 << 30)
        self._at(self._now + _SWEEP_S, "sweep")

    def _ask(self, slot: SimulatedSlot) -> None:
        while (request := slot.batcher.next_request(self._now, slot.busy())) is not None:
            claim = self._store.claim(self._signed(slot, request))
            slot.batcher.on_claim(claim, asked_at=self._now, now=self._now + self._scenario.costs.claim_s)
            if not claim.jobs:
                self._wake_at = 1 if claim.retry_in_s is None else request.enough
                break
            self._take(slot, claim)
        slot.ask_at = slot.batcher.ask_at(self._now, slot.busy())
        # A moment later at least: rounding may make an answer due "now" that `next_request` does not see yet.
        slot.ask_at = max(slot.ask_at, self._now + _TICK_S)
        self._at(slot.ask_at, "ask", slot)

    def _signed(self, slot: SimulatedSlot, request: ClaimRequest) -> ClaimRequest:
        return replace(request, worker=slot.name, nonce=str(next(self._nonces)), lease_s=1e9)

    def _take(self, slot: SimulatedSlot, claim: Claim) -> None:
        run = self._scenario.device.draw(len(claim.jobs), self._random)
        given_at = self._now + self._scenario.costs.claim_s
        slot.prepared_at = max(given_at + self._scenario.costs.feed_s, slot.prepared_at) + run.preprocess_s
        slot.waiting.append(SimulatedBatch(claim, run, given_at, slot.prepared_at, fresh=not slot.claims))
        if not slot.claims:
            slot.since = self._now
        slot.claims.append(claim)
        if slot.prepared_at > self._now:
            self._at(slot.prepared_at, "ready", slot)
        else:
            self._start(slot)

    def _start(self, slot: SimulatedSlot) -> None:
        if slot.running is not None or not slot.waiting or slot.waiting[0].ready_at > self._now:
            return
        slot.running = batch = slot.waiting.popleft()
        slot.since = batch.began_at = self._now
        self._at(self._now + batch.run.inference_s, "end", slot)

    def _end(self, slot: SimulatedSlot) -> None:
        batch = slot.running
        assert batch is not None
        slot.running = None
        slot.leaving.append(batch)
        slot.completed_at = max(self._now, slot.completed_at) + batch.run.postprocess_s
        self._start(slot)
        if slot.completed_at > self._now:
            self._at(slot.completed_at, "done", slot)
        else:
            self._done(slot)

    def _done(self, slot: SimulatedSlot) -> None:
        batch = slot.leaving.popleft()
        claim = slot.claims.popleft()
        feed_s = batch.began_at - batch.given_at if batch.fresh else None
        slot.batcher.on_ran(len(claim.jobs), batch.run.inference_s, feed_s=feed_s)
        endings = [Ending(job.id, job.token, JobState.SUCCEEDED) for job in claim.jobs]
        self._store.finish(endings, worker=slot.name, stamp=BatchStamp(size=len(endings), reason=claim.reason))
        self._tally.ran(claim, batch.run.inference_s, now=self._now)
        self._ask(slot)


class Counter(Protocol):
    """Told of every arrival, and of every batch whose answers leave."""

    def arrived(self, now: float) -> None: ...

    def ran(self, claim: Claim, run_s: float, *, now: float) -> None: ...


class SimulationTally:
    """Counts what arrived, and what ended, within the measured part of a run."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        # What arrives in the last deadline may still be under way at the end: neither side counts it.
        self._window = (scenario.warm_up_s, scenario.seconds - 2 * scenario.deadline_s)
        self._arrived = 0
        self._latencies_s: list[float] = []
        self._device_s = 0.0
        self._sizes: list[int] = []
        self._reasons: dict[str, int] = {}

    def _counts(self, moment: float) -> bool:
        return self._window[0] <= moment <= self._window[1]

    def arrived(self, now: float) -> None:
        self._arrived += self._counts(now)

    def ran(self, claim: Claim, run_s: float, *, now: float) -> None:
        self._latencies_s += [now - job.created_at for job in claim.jobs if self._counts(job.created_at)]
        if self._counts(now):
            self._device_s += run_s
            self._sizes.append(len(claim.jobs))
            self._reasons[claim.reason] = self._reasons.get(claim.reason, 0) + 1

    def outcome(self) -> SimulationOutcome:
        ordered = sorted(self._latencies_s)
        on_time = sum(1 for latency in ordered if latency <= self._scenario.deadline_s)
        peak = self._scenario.peak_rps * (self._window[1] - self._window[0])
        items = max(1, sum(self._sizes))
        return SimulationOutcome(
            on_time=on_time / max(1, self._arrived),
            goodput=on_time / peak,
            device_ms_per_item=self._device_s / items * 1e3,
            p50_ms=percentile(ordered, 50.0) * 1e3,
            p99_ms=percentile(ordered, 99.0) * 1e3,
            mean_batch=items / max(1, len(self._sizes)),
            reasons=self._reasons,
        )


def simulate(scenario: Scenario) -> SimulationOutcome:
    tally = SimulationTally(scenario)
    Simulation(scenario, tally).run()
    return tally.outcome()


def main() -> int:
    """One line per offered load."""
    for load in (0.03, 0.30, 0.60, 0.90, 0.94, 1.20):
        found = simulate(Scenario(load))
        sys.stdout.write(
            f"load {load:4.2f}: on time {found.on_time:6.1%}, goodput {found.goodput:5.2f} of peak, "
            f"{found.device_ms_per_item:4.2f} device ms per item, p50 {found.p50_ms:4.1f} ms, p99 {found.p99_ms:4.1f} ms, "
            f"mean batch {found.mean_batch:4.1f}, {found.reasons}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
