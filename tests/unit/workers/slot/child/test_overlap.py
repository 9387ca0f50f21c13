"""The items that a child runs side by side: given one by one, each with a time limit of its own, all suspects when it dies."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.broker.records import ClaimedJob
from penstock.job import Payload, Priority, new_job_id
from penstock.workers.ipc.frames import (
    BatchDone,
    GiveUp,
    Item,
    ItemReport,
    ItemReports,
    Output,
    RunBatch,
)
from penstock.workers.ipc.progress_page import Lane, ProgressPage
from penstock.workers.ipc.said import SaidLine
from penstock.workers.ipc.wire import ChildWire, SupervisorWire
from penstock.workers.slot.batch import SOLO, Batch
from penstock.workers.slot.child.overlap import ItemsInFlight

MAX_RUN_S = 75.0


def claimed(count: int, *, deadline_at: float = 1e12, reason: str = "idle") -> Batch:
    jobs = tuple(
        ClaimedJob(new_job_id("m"), "t", Payload("application/json"), Priority.BULK, 0.0, deadline_at, 1, 0)
        for _ in range(count)
    )
    items = tuple(Item("application/json", str(place).encode()) for place in range(count))
    return Batch(jobs, reason, "w", "n", claimed_at=100.0, leased_at=0.0, items=items)


def done(batch: int) -> BatchDone:
    return BatchDone(batch, [Output("application/json", b"1")], 0.0, 0.0, 0.0, 0.0, 0.0)


class Bench:
    """What a supervisor keeps of a child that runs four items at once, and the child's end of the wire."""

    def __init__(self) -> None:
        self.page = ProgressPage.create()
        self._theirs, self._ours = socket.socketpair()
        self._wire = ChildWire(self._theirs)
        self.items = ItemsInFlight(self.page, SupervisorWire(self._ours), at_once=4)

    def sent(self) -> list[object]:
        """Return all frames, and close the wire."""
        self._ours.close()
        return list(iter(self._wire.read, None))

    def close(self) -> None:
        self.page.close()
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_each_item_is_sent_as_a_batch_of_its_own_and_room_shrinks_by_it(bench: Bench) -> None:
    batch = claimed(3)
    bench.items.give(batch, 100.0)
    assert bench.items.load().room == 1
    assert [one.jobs for one in bench.items.awaited()] == [(job,) for job in batch.jobs]
    bench.items.on_batch_done(done(2), 101.0)
    assert (bench.items.load().room, bench.items.load().batches) == (2, 2)
    assert bench.sent() == [RunBatch(number, [item]) for number, item in enumerate(batch.items, 1)]


def test_a_batch_that_is_recorded_stays_whole_and_takes_the_room_of_its_items(bench: Bench) -> None:
    batch = replace(claimed(3), profile_dir="/p")
    bench.items.give(batch, 100.0)
    assert (bench.items.load().room, bench.items.load().batches) == (1, 1)
    assert bench.sent() == [RunBatch(1, list(batch.items), "/p")]
    bench.items.on_batch_done(done(1), 101.0)
    assert bench.items.load().room == 4


def test_a_shard_takes_the_room_of_one_item(bench: Bench) -> None:
    bench.items.add_shard(1, claimed(1), 100.0)
    assert bench.items.load().room == 3


def test_each_item_has_its_own_time_limit_from_when_it_was_given_or_said_something(bench: Bench) -> None:
    bench.items.give(claimed(1), 100.0)
    bench.items.give(claimed(1), 110.0)
    assert bench.items.limit_at(MAX_RUN_S) == 175.0
    bench.items.on_said(ItemReports(1, [ItemReport(0, 0.5)]), 120.0)
    assert bench.items.limit_at(MAX_RUN_S) == 185.0
    bench.items.on_batch_done(done(2), 130.0)
    assert bench.items.limit_at(MAX_RUN_S) == 195.0
    bench.items.on_batch_done(done(1), 131.0)
    assert bench.items.limit_at(MAX_RUN_S) == float("inf")


def test_a_pause_of_listening_starts_every_limit_again(bench: Bench) -> None:
    bench.items.give(claimed(2), 100.0)
    bench.items.on_paused(150.0)
    assert bench.items.limit_at(MAX_RUN_S) == 225.0


def test_a_micro_batch_has_a_limit_of_its_own_beside_them(bench: Bench) -> None:
    bench.items.give(claimed(1), 100.0)
    bench.items.add_shard(1, claimed(1), 80.0)
    bench.page.shards.enter(Lane.RUNNING, 1, 90.0)
    assert bench.items.limit_at(MAX_RUN_S) == 165.0


def test_nothing_that_was_given_is_taken_back(bench: Bench) -> None:
    bench.items.give(claimed(2), 100.0)
    assert bench.items.recall() == []
    assert len(bench.items.disown()) == 2
    assert (bench.items.load().batches, bench.items.awaited()) == (2, [])


def test_late_jobs_are_looked_for_ten_times_a_second_at_most(bench: Bench) -> None:
    # The deadlines pass at 104 and 104.05 by this machine's clock.
    bench.items.give(claimed(1, deadline_at=4.0), 100.0)
    bench.items.give(claimed(1, deadline_at=4.05), 100.0)
    for now in (104.01, 104.06, 104.10, 104.12, 104.20):
        bench.items.give_up_late(now)
        if now == 104.10:
            bench.items.on_batch_done(done(1), now)
    assert bench.sent()[2:] == [GiveUp(1, [0], late=True), GiveUp(2, [0], late=True)]


@pytest.mark.parametrize("is_hung", [False, True])
def test_all_in_flight_are_suspects_and_only_a_lone_one_surely_hung(bench: Bench, is_hung: bool) -> None:
    bench.items.give(claimed(2), 100.0)
    suspects = bench.items.suspects(is_hung=is_hung)
    assert [is_suspect for _, is_suspect in suspects] == [True, True]
    assert not any(bench.items.is_sole_suspect(batch) for batch, _ in suspects)
    bench.items.on_batch_done(done(1), 101.0)
    [(batch, is_suspect)] = bench.items.suspects(is_hung=is_hung)
    assert is_suspect
    assert bench.items.is_sole_suspect(batch)


def test_what_runs_alone_lets_no_other_join(bench: Bench) -> None:
    bench.items.give(claimed(1, reason=SOLO), 100.0)
    assert bench.items.load().alone
    bench.items.on_batch_done(done(1), 101.0)
    bench.items.give(claimed(1), 102.0)
    assert not bench.items.load().alone


def test_a_line_that_is_read_after_its_item_has_ended_still_names_the_job(bench: Bench) -> None:
    batch = claimed(3)
    bench.items.give(batch, 100.0)
    for number in (1, 2):
        bench.items.on_batch_done(done(number), 101.0)
    names = [bench.items.whose(SaidLine("text", number, 1)).get("job_id") for number in (1, 2, 3)]
    assert names == [str(job.id) for job in batch.jobs]
