"""When the child has run for too long, as its page of progress tells it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.broker.records import ClaimedJob
from penstock.job import Payload, Priority, new_job_id
from penstock.workers.ipc.frames import GiveUp, ItemReport, ItemReports
from penstock.workers.ipc.progress_page import Lane, ProgressPage, Stage
from penstock.workers.ipc.wire import ChildWire, SupervisorWire
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.in_flight import InFlight


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    made = ProgressPage.create()
    yield made
    made.close()


def batch(deadline_at: float = 1e12) -> Batch:
    job = ClaimedJob(new_job_id("m"), "t", Payload("application/json"), Priority.BULK, 0.0, deadline_at, 1, 0)
    return Batch((job,), "bulk", "w", "n", claimed_at=0.0)


def test_the_limit_counts_from_the_start_of_the_oldest_micro_batch(page: ProgressPage) -> None:
    in_flight = InFlight(page)
    in_flight.add_shard(1, batch(), 100.0)
    assert in_flight.limit_at(75.0) == float("inf")
    page.shards.enter(Lane.RUNNING, 1, 130.0)
    page.shards.enter(Lane.PREPARING, 1, 131.0)
    assert in_flight.limit_at(75.0) == 205.0


def test_a_micro_batch_cannot_be_older_than_its_shard(page: ProgressPage) -> None:
    in_flight = InFlight(page)
    in_flight.add_shard(1, batch(), 100.0)
    in_flight.add_batch(1, batch(), 110.0)
    page.shards.enter(Lane.RUNNING, 1, 0.0)
    page.mark(1, Stage.RUNNING, 0.0)
    assert in_flight.limit_at(75.0) == 175.0
    [(_, is_batch), (_, is_shard)] = in_flight.suspects(is_hung=True)
    assert (is_batch, is_shard) == (False, True)


def test_a_sign_of_life_starts_the_limit_again_and_counts_for_all_jobs_of_the_slot(page: ProgressPage) -> None:
    in_flight, running, behind, waiting = InFlight(page), batch(), batch(), batch()
    in_flight.add_batch(1, running, 100.0)
    in_flight.add_batch(2, behind, 100.0)
    assert (in_flight.limit_at(75.0), in_flight.signs_of_life([waiting])) == (175.0, {})
    said = in_flight.on_said(ItemReports(1, [ItemReport(0, 0.5)]), 160.0)
    assert said is not None
    assert said.batch.jobs == running.jobs
    assert in_flight.limit_at(75.0) == 235.0
    assert set(in_flight.signs_of_life([waiting])) == {each.jobs[0].id for each in (running, behind, waiting)}


def test_the_child_hears_once_which_items_are_not_wanted_and_which_are_late(page: ProgressPage) -> None:
    theirs, ours = socket.socketpair()
    wire, in_flight = ChildWire(theirs), InFlight(page, SupervisorWire(ours))
    some = batch(), batch(deadline_at=30.0)
    both = replace(some[0], jobs=some[0].jobs + some[1].jobs, claimed_at=100.0, leased_at=25.0)
    in_flight.add_batch(1, both, 100.0)
    in_flight.give_up_late(104.9)
    in_flight.give_up({both.jobs[0].id})
    in_flight.give_up({both.jobs[0].id})
    in_flight.give_up_late(105.1)
    in_flight.give_up_late(106.0)
    ours.close()
    assert list(iter(wire.read, None)) == [GiveUp(1, [0]), GiveUp(1, [1], late=True)]
    theirs.close()


def test_what_nobody_awaits_any_more_may_stop_and_says_nothing_that_starts_its_limit_again(page: ProgressPage) -> None:
    theirs, ours = socket.socketpair()
    wire, in_flight, running = ChildWire(theirs), InFlight(page, SupervisorWire(ours)), batch()
    in_flight.add_batch(1, running, 100.0)
    page.mark(1, Stage.RUNNING, 101.0)
    assert [given_up.jobs for given_up in in_flight.disown()] == [running.jobs]
    assert in_flight.on_said(ItemReports(1, [ItemReport(0, 0.5)]), 160.0) is None
    assert in_flight.limit_at(75.0) == 175.0
    ours.close()
    assert list(iter(wire.read, None)) == [GiveUp(1, [0])]
    theirs.close()
