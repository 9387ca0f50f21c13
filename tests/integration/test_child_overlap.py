"""Items of an async handler in a real child process, side by side, without a store."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.broker.records import ClaimedJob
from penstock.job import Payload, Priority, new_job_id
from penstock.workers.ipc.frames import Item, Output
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.events import BatchLost, BatchRan, Cause
from tests.integration.test_child_shards import Bench
from tests.integration.worker_process import HANDLERS, Gate

MEETING = f"{HANDLERS}/meeting.py:Meeting"
# Of a run, where one is to exceed it.
LIMIT_S = 1.0


class OverlapBench(Bench):
    """A child that runs four items at once."""

    def claim(self, *orders: Any) -> list[Batch]:
        """Give orders as one claim; what becomes of each is known by its job."""
        jobs = tuple(ClaimedJob(new_job_id("m"), "t", Payload(""), Priority.BULK, 0.0, 1e12, 1, 0) for _ in orders)
        items = tuple(Item("application/json", msgspec.json.encode(order)) for order in orders)
        batch = Batch(jobs, "idle", "w", "n", claimed_at=time.monotonic(), items=items)
        self.child.give(batch, time.monotonic())
        return [replace(batch, jobs=(job,), items=()) for job in jobs]

    def ends(self, batch: Batch) -> list[BatchRan | BatchLost]:
        ends = [event for event in self.events if isinstance(event, BatchRan | BatchLost)]
        return [event for event in ends if event.batch.jobs == batch.jobs]

    def output(self, batch: Batch) -> Any:
        self.await_true(lambda: self.ends(batch))
        [end] = self.ends(batch)
        assert isinstance(end, BatchRan), end
        [output] = end.done.outcomes
        assert isinstance(output, Output), output
        return msgspec.json.decode(output.data)

    def await_begun(self, gate: Path, count: int) -> None:
        notes = gate.with_name(f"{gate.name}.{os.getpid()}")
        self.await_true(lambda: notes.exists() and notes.stat().st_size >= count)

    def ready(self) -> OverlapBench:
        """Return this bench for the next test: its child may have died in the one before, and has answered since."""
        self.await_true(lambda: self.child.is_taking and self.child.in_flight.is_empty)
        assert self.output(self.claim({"tag": "ready"})[0]) == "ready"
        self.events.clear()
        return self


@pytest.fixture(scope="module")
def shared() -> Iterator[OverlapBench]:
    made = OverlapBench(MEETING, batch=8)
    yield made
    made.child.close()


@pytest.fixture
def bench(shared: OverlapBench) -> OverlapBench:
    return shared.ready()


@pytest.fixture(scope="module")
def shared_hasty() -> Iterator[OverlapBench]:
    made = OverlapBench(MEETING, batch=8, max_run_s=LIMIT_S)
    yield made
    made.child.close()


@pytest.fixture
def hasty(shared_hasty: OverlapBench) -> OverlapBench:
    """Return a bench whose child is ended early."""
    return shared_hasty.ready()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def held(gate: Path, tag: Any = 0) -> dict[str, Any]:
    return Gate(gate).held(tag)


def test_of_items_that_were_claimed_together_each_ends_alone(bench: OverlapBench, gate: Path) -> None:
    slow, *quick = bench.claim(held(gate, "slow"), {"tag": 1}, {"tag": 2}, {"tag": 3})
    assert [bench.output(one) for one in quick] == [1, 2, 3]
    assert not bench.ends(slow)
    assert bench.child.in_flight.load().room == 3
    gate.touch()
    assert bench.output(slow) == "slow"


def test_no_more_run_at_once_than_the_handler_says_however_many_are_given(bench: OverlapBench, gate: Path) -> None:
    many = bench.claim(*({"company": 4} for _ in range(12)))
    assert {bench.output(one) for one in many} == {4}


def test_rows_of_a_run_get_on_beside_jobs_and_no_more_run_at_once(bench: OverlapBench, gate: Path) -> None:
    slow = bench.claim(*(held(gate, tag) for tag in range(3)))
    bench.await_begun(gate, 3)
    outcome = bench.outcome_of(bench.shard(*({"tag": tag} for tag in range(20))))
    assert outcome.outputs == list(range(20))
    shard = bench.shard(*(held(gate, tag) for tag in range(20)))
    [quick] = bench.claim({"company": 4})
    gate.touch()
    assert bench.outcome_of(shard).outputs == list(range(20))
    assert bench.output(quick) == 4
    assert [bench.output(one) for one in slow] == [0, 1, 2]


def test_of_a_child_that_is_killed_every_item_is_lost_once_and_may_have_caused_it(bench: OverlapBench, gate: Path) -> None:
    many = bench.claim(*(held(gate, tag) for tag in range(4)))
    bench.await_begun(gate, 4)
    os.kill(bench.child.pid, signal.SIGKILL)
    bench.await_true(lambda: all(bench.ends(one) for one in many))
    assert [[end.cause for end in bench.ends(one) if isinstance(end, BatchLost)] for one in many] == [[Cause.CRASHED]] * 4


def test_a_loop_that_is_blocked_for_good_costs_each_item_one_crash(hasty: OverlapBench, gate: Path) -> None:
    waiting = hasty.claim(*(held(gate, tag) for tag in range(2)))
    hasty.await_begun(gate, 2)
    [blocking] = hasty.claim({"blocks": 3_600.0})
    ended = [*waiting, blocking]
    hasty.await_true(lambda: all(hasty.ends(one) for one in ended))
    assert [end.cause for one in ended for end in hasty.ends(one) if isinstance(end, BatchLost)] == [Cause.CRASHED] * 3


def test_an_item_that_cannot_be_stopped_fails_when_it_is_alone(hasty: OverlapBench) -> None:
    [deaf] = hasty.claim({"deaf": True})
    hasty.await_true(lambda: hasty.ends(deaf))
    [end] = hasty.ends(deaf)
    assert isinstance(end, BatchLost)
    assert end.cause is Cause.TIMED_OUT


def test_a_claim_that_is_recorded_comes_back_whole_with_its_recording(bench: OverlapBench, tmp_path: Path) -> None:
    jobs = tuple(ClaimedJob(new_job_id("m"), "t", Payload(""), Priority.BULK, 0.0, 1e12, 1, 0) for _ in range(3))
    items = tuple(Item("application/json", msgspec.json.encode({"tag": tag})) for tag in range(3))
    batch = Batch(jobs, "idle", "w", "n", claimed_at=time.monotonic(), items=items, profile_dir=str(tmp_path))
    bench.child.give(batch, time.monotonic())
    bench.await_true(lambda: bench.ends(batch))
    [end] = bench.ends(batch)
    assert isinstance(end, BatchRan)
    assert [output.data for output in end.done.outcomes if isinstance(output, Output)] == [b"0", b"1", b"2"]
    assert "meeting.py" in (tmp_path / "profile.txt").read_text()


def test_a_child_is_replaced_when_its_items_have_ended_and_wears_by_as_many_as_run_at_once(gate: Path) -> None:
    bench = OverlapBench(MEETING, batch=8, recycle_after_batches=2)
    first = bench.child.pid
    for tag in range(7):
        assert bench.output(bench.claim({"tag": tag})[0]) == tag
    [slow] = bench.claim(held(gate))
    bench.await_begun(gate, 1)
    bench.child.reload(time.monotonic())
    bench.await_true(lambda: not bench.child.is_taking)
    assert (bench.child.pid, bench.ends(slow)) == (first, [])
    gate.touch()
    assert bench.output(slow) == 0
    bench.await_true(lambda: bench.child.is_taking and bench.child.pid != first)
    second = bench.child.pid
    for tag in range(8):
        assert bench.child.pid == second
        assert bench.output(bench.claim({"tag": tag})[0]) == tag
    bench.await_true(lambda: bench.child.is_taking and bench.child.pid != second)
    bench.child.close()
