"""Shards in a real child process, with and without online batches beside them, and without a store."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from selectors import DefaultSelector
from typing import Any

import msgspec
import pytest

from penstock.broker.records import ClaimedJob
from penstock.job import Call, Payload, Priority, new_job_id
from penstock.model_spec import BatchPolicy, Limits, ModelSpec
from penstock.shard import NOT_RUN, SHARD_MEDIA, Shard, ShardOutcome, decode_outcome, encode_shard
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import Failed, Item, Output
from penstock.workers.ipc.progress_page import Lane
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.events import BatchLost, BatchRan, Cause, Event
from penstock.workers.slot.child.manager import ChildManager
from tests.integration.worker_process import FAULTY, PACED, Gate

# Thousands of rows pass through one child and this process, which share two cores with other tests.
WITHIN_S = 60.0
# The time limit for a batch: machines pause for a second, and a micro-batch of 0.2 s must not be taken for one that hangs.
LIMIT_S = 3.0


class Bench:
    """A child process and its supervisor, which the test drives."""

    def __init__(self, handler: str = f"{FAULTY}:Faulty", *, batch: int = 4, **limits: Any) -> None:
        spec = ModelSpec("m", handler, policy=BatchPolicy(batch), limits=Limits(**limits), warm_up=False)
        self.selector = DefaultSelector()
        self.child = ChildManager(spec, Pin((), 1), self.selector, lambda spec: (spec, ""), max_batch_size=batch)
        self.events: list[Event] = []
        self.await_true(lambda: self.child.is_taking)

    def await_true(self, condition: Callable[[], Any]) -> None:
        until = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < until, self.events
            self.child.tend(time.monotonic())
            for key, mask in self.selector.select(0.02):
                self.events += self.child.handle(key.data, mask, time.monotonic())

    def shard(self, *rows: Any, data: bytes | None = None) -> Batch:
        body = encode_shard(Shard("application/json", list(rows))) if data is None else data
        return self._give(Item(SHARD_MEDIA, body), Call.SHARD)

    def online(self, order: Any) -> Batch:
        return self._give(Item("application/json", msgspec.json.encode(order)), Call.PREDICT)

    def _give(self, item: Item, call: Call) -> Batch:
        id = new_job_id("m")
        job = ClaimedJob(id, "t", Payload(item.content_type), Priority.BULK, 0.0, 1e12, 1, 0, call)
        batch = Batch((job,), "bulk", "w", id.serial, claimed_at=time.monotonic(), items=(item,))
        self.child.give(batch, time.monotonic())
        return batch

    def online_from(self, path: Path, order: Any) -> Batch:
        path.write_bytes(msgspec.json.encode(order))
        return self._give(Item("application/json", path=str(path), own=True), Call.PREDICT)

    def lane(self, lane: Lane) -> int:
        """Return the shard in this lane."""
        in_flight = self.child.in_flight
        return in_flight._progress.shards.lane(lane, in_flight._shards)[0]

    def end_of(self, batch: Batch) -> BatchRan | BatchLost:
        def found() -> list[BatchRan | BatchLost]:
            ends = [event for event in self.events if isinstance(event, BatchRan | BatchLost)]
            return [event for event in ends if event.batch.nonce == batch.nonce]

        self.await_true(found)
        return found()[0]

    def outcome_of(self, batch: Batch) -> ShardOutcome:
        end = self.end_of(batch)
        assert isinstance(end, BatchRan)
        [output] = end.done.outcomes
        assert isinstance(output, Output)
        return decode_outcome(output.data)


@pytest.fixture(scope="module")
def shared() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.child.close()


@pytest.fixture
def bench(shared: Bench) -> Bench:
    """Return the bench of all tests, whose child may have died in the one before."""
    shared.events.clear()
    shared.await_true(lambda: shared.child.is_taking and shared.child.in_flight.is_empty)
    return shared


@pytest.fixture(scope="module")
def pacer() -> Iterator[Bench]:
    """Yield a bench whose rows last until a gate opens."""
    made = Bench(f"{PACED}:Paced")
    yield made
    made.child.close()


def echoes(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"do": "echo", "tag": tag, **more} for tag in range(count)]


def sleepers(count: int, seconds: float = 0.05) -> list[dict[str, Any]]:
    return [{"do": "sleep", "tag": tag, "seconds": seconds} for tag in range(count)]


def test_a_shards_outputs_come_back_in_its_order(bench: Bench) -> None:
    batch = bench.shard(*echoes(1_001))
    assert bench.outcome_of(batch).outputs == list(range(1_001))
    end = bench.end_of(batch)
    assert isinstance(end, BatchRan)
    assert (end.done.rows, end.done.bad_rows) == (1_001, 0)
    assert end.done.inference_s > 0


def test_bad_rows_fail_alone_with_what_an_online_job_would_be_told(bench: Bench) -> None:
    bad = [{"do": "raise", "tag": "x"}, {"do": "fail", "tag": "y"}, {"do": 7}, "no object", {"tag": float("nan")}]
    found = bench.outcome_of(bench.shard(*echoes(20), *bad, *echoes(20)))
    assert found.outputs == [*range(20), *[None] * 5, *range(20)]
    codes = {failure.place: failure.code for failure in found.failures}
    assert codes == {20: "handler_error", 21: "refused", 22: "invalid_input", 23: "invalid_input", 24: "handler_contract"}


def test_a_shard_without_rows_and_one_that_is_none_come_back_at_once(bench: Bench) -> None:
    assert bench.outcome_of(bench.shard()).outputs == []
    end = bench.end_of(bench.shard(data=b"\xc1"))
    assert isinstance(end, BatchRan)
    [failed] = end.done.outcomes
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_input"


def test_an_online_batch_waits_for_one_micro_batch_and_not_for_the_shard(pacer: Bench, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    batch = pacer.shard(*gate.slow(1_000))
    pacer.await_true(lambda: sum(pacer.child.in_flight.signs_of_life(()).values()))
    pacer.end_of(pacer.online({"tag": 1}))
    # Until the gate opens, the shard as a whole takes 50 seconds, and a micro-batch a part of that.
    assert pacer.child.in_flight.load().shards == 1
    gate.open()
    assert pacer.outcome_of(batch).outputs == list(range(1_000))


def test_a_shard_gets_on_beside_a_flood_of_online_batches(bench: Bench) -> None:
    batch = bench.shard(*sleepers(8, 0.001))
    first = bench.online({"do": "sleep", "seconds": 0.02})
    bench.online({"do": "sleep", "seconds": 0.02})
    seen = {first.nonce}
    while not any(isinstance(event, BatchRan) and event.batch.nonce == batch.nonce for event in bench.events):
        bench.await_true(lambda: bench.child.in_flight.load().batches < 2)
        seen.add(bench.online({"do": "sleep", "seconds": 0.02}).nonce)
        assert len(seen) < 100
    assert bench.outcome_of(batch).outputs == list(range(8))


def test_a_shard_whose_time_is_over_comes_back_with_the_rows_that_ran(bench: Bench) -> None:
    shard = bench.shard(data=encode_shard(Shard("application/json", sleepers(60, 0.1), most_s=0.4)))
    outcome = bench.outcome_of(shard)
    unrun = {failure.place for failure in outcome.failures}
    assert {failure.code for failure in outcome.failures} == {NOT_RUN}
    assert 0 < len(unrun) < 60
    assert [place for place, output in enumerate(outcome.outputs) if output is None] == sorted(unrun)


def test_a_crash_is_blamed_on_the_shard_that_was_touched_and_not_on_the_one_behind_it(bench: Bench) -> None:
    first, second = bench.shard(*echoes(3), {"do": "segfault"}), bench.shard(*echoes(3))
    ends = [bench.end_of(batch) for batch in (first, second)]
    assert [end.cause for end in ends if isinstance(end, BatchLost)] == [Cause.CRASHED, Cause.UNSTARTED]


def test_a_child_that_is_killed_amid_a_shard_costs_the_shard_and_a_new_child_runs_it(bench: Bench) -> None:
    batch = bench.shard(*sleepers(400))
    bench.await_true(lambda: sum(bench.child.in_flight.signs_of_life(()).values()))
    os.kill(bench.child.pid, signal.SIGKILL)
    end = bench.end_of(batch)
    assert isinstance(end, BatchLost)
    assert end.cause is Cause.CRASHED
    bench.await_true(lambda: bench.child.is_taking)
    assert bench.outcome_of(bench.shard(*echoes(5))).outputs == list(range(5))


def test_the_limit_of_time_is_for_a_micro_batch_and_not_for_the_shard() -> None:
    # Two at the same time, because both last as long as the limit.
    bench, hanging = Bench(max_run_s=LIMIT_S), Bench(max_run_s=LIMIT_S)
    hung, behind = hanging.shard(*echoes(3), {"do": "hang"}), hanging.shard(*echoes(3))
    hanging.await_true(lambda: hanging.lane(Lane.RUNNING))
    waiting = hanging.online({"do": "echo"})
    batch = bench.shard(*sleepers(64))
    began_at = time.monotonic()
    assert bench.outcome_of(batch).outputs == list(range(64))
    assert time.monotonic() - began_at > LIMIT_S
    ends = [hanging.end_of(batch) for batch in (hung, behind, waiting)]
    assert [end.cause for end in ends if isinstance(end, BatchLost)] == [Cause.TIMED_OUT, Cause.UNSTARTED, Cause.UNSTARTED]
    for made in (bench, hanging):
        made.child.close()


def test_an_online_batch_that_hangs_beside_a_shard_is_the_one_that_is_blamed() -> None:
    bench = Bench(max_run_s=LIMIT_S)
    shard = bench.shard(*sleepers(2_000, 0.01))
    bench.await_true(lambda: sum(bench.child.in_flight.signs_of_life(()).values()))
    hung = bench.end_of(bench.online({"do": "hang"}))
    lost = bench.end_of(shard)
    assert isinstance(hung, BatchLost)
    assert isinstance(lost, BatchLost)
    assert (hung.cause, lost.cause) == (Cause.TIMED_OUT, Cause.UNSTARTED)
    bench.child.close()


def test_rows_that_exhaust_memory_together_run_in_smaller_calls() -> None:
    bench = Bench(f"{FAULTY}:SmallMemory", batch=8)
    found = bench.outcome_of(bench.shard(*echoes(30), {"do": "exhaust"}))
    assert found.outputs == [*range(30), None]
    assert [failure.code for failure in found.failures] == ["oom"]
    bench.child.close()


def test_a_shard_that_has_not_begun_is_taken_back_and_the_running_one_goes_on(pacer: Bench, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    first, second = pacer.shard(*gate.slow(1_000)), pacer.shard(*echoes(3))
    pacer.await_true(lambda: sum(pacer.child.in_flight.signs_of_life(()).values()))
    assert [batch.nonce for batch in pacer.child.in_flight.recall()] == [second.nonce]
    gate.open()
    assert pacer.outcome_of(first).outputs == list(range(1_000))
    pacer.await_true(lambda: not pacer.child.in_flight.load().shards)


def test_a_shard_that_is_given_up_amid_its_rows_is_left_by_the_child(bench: Bench) -> None:
    batch = bench.shard(*sleepers(2_000))
    bench.await_true(lambda: sum(bench.child.in_flight.signs_of_life(()).values()))
    assert [given_up.nonce for given_up in bench.child.in_flight.disown()] == [batch.nonce]
    bench.await_true(lambda: not bench.child.in_flight.load().shards)
    assert bench.outcome_of(bench.shard(*echoes(5))).outputs == list(range(5))


def test_a_device_that_fails_every_call_ends_the_child_and_costs_the_shard(tmp_path: Path) -> None:
    bench = Bench(f"{FAULTY}:Accelerated")
    end = bench.end_of(bench.shard(*echoes(3), {"do": "device", "tag": "CUDA error: device-side assert triggered"}))
    assert isinstance(end, BatchLost)
    assert end.cause is Cause.CRASHED
    bench.child.close()


def test_a_child_that_is_worn_ends_its_shard_and_is_then_replaced(tmp_path: Path) -> None:
    bench, gate = Bench(f"{PACED}:Paced", batch=1, recycle_after_batches=3), Gate(tmp_path / "gate")
    first = bench.child.pid
    batch = bench.shard(*gate.slow(1_000))
    for _ in range(3):
        bench.end_of(bench.online({"tag": 1}))
    bench.await_true(lambda: not bench.child.is_taking_shards)
    assert bench.child.is_taking
    gate.open()
    assert bench.outcome_of(batch).outputs == list(range(1_000))
    bench.await_true(lambda: bench.child.is_taking and bench.child.pid != first)
    bench.child.close()


def test_a_copy_of_an_input_lives_as_long_as_the_child_may_read_it(bench: Bench, tmp_path: Path) -> None:
    slow, waiting = tmp_path / "slow", tmp_path / "waiting"
    first = bench.online_from(slow, {"do": "sleep", "seconds": 0.3})
    second = bench.online_from(waiting, {"do": "echo", "tag": 1})
    assert isinstance(bench.end_of(first), BatchRan)
    assert not slow.exists()
    assert isinstance(bench.end_of(second), BatchRan)
    assert not waiting.exists()
    killed = bench.online_from(slow, {"do": "segfault"})
    assert isinstance(bench.end_of(killed), BatchLost)
    assert not slow.exists()
    bench.await_true(lambda: bench.child.is_taking)
    disowned = bench.online_from(slow, {"do": "sleep", "seconds": 0.3})
    assert [given_up.nonce for given_up in bench.child.in_flight.disown()] == [disowned.nonce]
    assert slow.exists(), "the child may not have read it yet"
    bench.await_true(lambda: not slow.exists())
