"""When the child has run for too long, as its page of progress tells it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.broker.records import ClaimedJob
from penstock.job import Payload, Priority, new_job_id
from penstock.workers.ipc.progress_page import Lane, ProgressPage, Stage
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.in_flight import InFlight


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    made = ProgressPage.create()
    yield made
    made.close()


def batch() -> Batch:
    job = ClaimedJob(new_job_id("m"), "t", Payload("application/json"), Priority.BULK, 0.0, 1e12, 1, 0)
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
