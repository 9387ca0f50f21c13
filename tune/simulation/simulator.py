"""The batching policy under load without a device: the workers' `Batcher` and the store's rules of a claim on a virtual clock.

`python -m penstock.tune.simulation.simulator` prints, per offered load, the share of the peak that was answered on time.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from penstock.broker.records import Claim
from penstock.model_spec import ModelSpec
from penstock.tune.simulation.queue import SimulatedQueue
from penstock.tune.simulation.scenario import BatchSeconds, Scenario
from penstock.tune.simulation.tally import SimulationListener, SimulationOutcome, SimulationTally
from penstock.workers.child.calls.cuts import Bounds
from penstock.workers.child.calls.planner import CallPlan, Planner
from penstock.workers.child.calls.run import Pace
from penstock.workers.slot.batch import ChildLoad
from penstock.workers.slot.batcher import Batcher
from penstock.workers.slot.latency import Latency

# D40: docs/design/batching.md
_MODEL = "simulated"
_VERSION = "1"
_SWEEP_S = 1.0
_TICK_S = 1e-6


@dataclass(slots=True)
class SimulatedBatch:
    """A batch on its way through a child. `ready_at`: when its preprocessing ends. `fresh`: the child was idle when it came."""

    claim: Claim
    run: BatchSeconds
    given_at: float
    ready_at: float
    fresh: bool
    began_at: float = 0.0
    plan: CallPlan = field(default_factory=lambda: CallPlan([]))


class SimulatedSlot:
    """One slot and its child: at most one batch runs, and at most one waits behind it."""

    def __init__(self, batcher: Batcher, planner: Planner) -> None:
        self.batcher = batcher
        self.planner = planner
        self.pace = Pace()
        self.claims: deque[Claim] = deque()
        # Batches before inference, the batch in inference, and batches that only have to be postprocessed.
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

    def on_ran(self, batch: SimulatedBatch) -> None:
        """As the child learns (`Calls`)."""
        if self.pace.is_slow:
            self.planner.on_batch(batch.plan, batch.run.inference_s)
        self.pace.on_batch(batch.run.inference_s)

    def wish(self) -> int:
        return self.planner.wish() if self.pace.is_slow else 0


class Simulation:
    """One run of one scenario. Events: `arrive`, `ask` (a slot's timer), `ready` (a batch is preprocessed), `end` (of its
    inference), `done` (it is postprocessed), `sweep`."""

    def __init__(self, scenario: Scenario, listener: SimulationListener) -> None:
        self._scenario = scenario
        self._random = random.Random(scenario.seed)
        self._now = 0.0
        self._queue = SimulatedQueue(_MODEL)
        self._numbers = itertools.count()
        self._slots = [self._slot() for _ in range(scenario.slots)]
        self._events: list[tuple[float, int, str, SimulatedSlot | None]] = []
        self._order = itertools.count()
        # Like the store: a slot that got no jobs is woken when the queue reaches this depth.
        self._wake_at: int | None = 1
        self._listener = listener
        self._arrivals = iter(scenario.arrivals) if scenario.arrivals else self._poisson()

    def run(self) -> None:
        self._expect()
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
        elif slot.ask_at == self._now:  # otherwise the timer was set to another moment
            self._ask(slot)

    def _at(self, when: float, kind: str, slot: SimulatedSlot | None = None) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, slot))

    def _expect(self) -> None:
        """The next request arrives at its moment, if there is another one."""
        when = next(self._arrivals, None)
        if when is not None:
            self._at(when, "arrive")

    def _poisson(self) -> Iterator[float]:
        while True:
            yield self._now + self._random.expovariate(self._scenario.load * self._scenario.peak_rps)

    def _slot(self) -> SimulatedSlot:
        latency = Latency()
        limit = self._scenario.policy.max_batch_size
        planner = Planner(Bounds(limit))
        for size in [1 << power for power in range(limit.bit_length()) if 1 << power <= limit]:
            run_s = self._scenario.device.draw(size, self._random).inference_s
            latency.observe(size, run_s)
            planner.on_ran(size, (), run_s)
        spec = ModelSpec(_MODEL, "", _VERSION, self._scenario.policy)
        batcher = Batcher(spec, latency)
        batcher.peers = self._scenario.slots - 1
        return SimulatedSlot(batcher, planner)

    def _arrive(self) -> None:
        self._queue.submit(f"{next(self._numbers):026}", self._scenario.deadline_s, self._now)
        self._listener.on_arrival(self._now)
        self._expect()
        if self._wake_at is not None and self._queue.depth >= self._wake_at:
            self._wake_at = None
            self._wake_all()

    def _wake_all(self) -> None:
        for slot in self._slots:
            slot.batcher.view.on_wake_up()
            self._ask(slot)

    def _sweep(self) -> None:
        self._queue.sweep(self._now)
        self._at(self._now + _SWEEP_S, "sweep")

    def _ask(self, slot: SimulatedSlot) -> None:
        while (request := slot.batcher.next_request(self._now, slot.busy())) is not None:
            claim = self._queue.claim(request, self._now)
            slot.batcher.on_claim(claim, asked_at=self._now, now=self._now + self._scenario.costs.claim_s)
            if not claim.jobs:
                self._wake_at = 1 if claim.retry_in_s is None else request.enough
                break
            self._take(slot, claim)
        slot.ask_at = slot.batcher.ask_at(self._now, slot.busy())
        # At least a tick later: rounding may make a batch due now that `next_request` does not consider due yet.
        slot.ask_at = max(slot.ask_at, self._now + _TICK_S)
        self._at(slot.ask_at, "ask", slot)

    def _take(self, slot: SimulatedSlot, claim: Claim) -> None:
        plan, run = self._calls(slot, len(claim.jobs))
        given_at = self._now + self._scenario.costs.claim_s
        slot.prepared_at = max(given_at + self._scenario.costs.feed_s, slot.prepared_at) + run.preprocess_s
        slot.waiting.append(SimulatedBatch(claim, run, given_at, slot.prepared_at, fresh=not slot.claims, plan=plan))
        if not slot.claims:
            slot.since = self._now
        slot.claims.append(claim)
        if slot.prepared_at > self._now:
            self._at(slot.prepared_at, "ready", slot)
        else:
            self._start(slot)

    def _calls(self, slot: SimulatedSlot, size: int) -> tuple[CallPlan, BatchSeconds]:
        """The batch in the calls that the child would make of it, and its seconds."""
        if not slot.pace.is_slow:
            return CallPlan([list(range(size))]), self._scenario.device.draw(size, self._random)
        plan = slot.planner.plan(size, (), may_try=not slot.batcher.is_urgent)
        runs = [self._scenario.device.draw(len(places), self._random) for places in plan.calls]
        for places, run in zip(plan.calls, runs, strict=True):
            slot.planner.on_ran(len(places), (), run.inference_s)
        if len(runs) == 1:
            return plan, runs[0]
        whole = self._scenario.device.draw(size, self._random)
        return plan, replace(whole, inference_s=sum(run.inference_s for run in runs))

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
        slot.on_ran(batch)
        slot.batcher.on_ran(len(claim.jobs), batch.run.inference_s, feed_s=feed_s, wish=slot.wish())
        self._queue.finish(len(claim.jobs))
        self._listener.on_batch(claim, batch.run.inference_s, now=self._now)
        self._ask(slot)


def simulate(scenario: Scenario) -> SimulationOutcome:
    tally = SimulationTally(scenario)
    Simulation(scenario, tally).run()
    return tally.outcome()


def main() -> int:
    """Prints one line per offered load."""
    for load in (0.03, 0.30, 0.60, 0.90, 0.94, 1.20):
        run = simulate(Scenario(load))
        sys.stdout.write(
            f"load {load:4.2f}: on time {run.on_time:6.1%}, goodput {run.goodput:5.2f} of peak, "
            f"{run.device_ms_per_item:4.2f} device ms per item, p50 {run.p50_ms:4.1f} ms, p99 {run.p99_ms:4.1f} ms, "
            f"mean batch {run.mean_batch:4.1f}, {run.reasons}\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
