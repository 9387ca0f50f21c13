from __future__ import annotations

from array import array
from datetime import UTC, datetime, timedelta

import pytest

from penstock.client.views import BatchView, JobView
from penstock.loadtest.assignment import MergedTally
from penstock.loadtest.observed.inside import counter_increases, inside_view
from penstock.loadtest.result import Inside

AT = datetime(2026, 11, 21, tzinfo=UTC)


def job(wait_s: float, batch: BatchView | None) -> JobView:
    return JobView("1-m", "succeeded", created_at=AT, started_at=AT + timedelta(seconds=wait_s), batch=batch)


def told(load: MergedTally, records: list[JobView], *, mean_ms: float | None = None) -> Inside | None:
    return inside_view(load, records, seconds=10.0, slots=2, mean_latency_ms=mean_ms, counters={})


def timed() -> MergedTally:
    """Two batches: one item in 1 s, and two items in 2 s."""
    return MergedTally(
        queue_s=array("f", [0.5] * 3),
        run_s=array("f", [1.0, 2.0, 2.0]),
        sizes=array("H", [1, 2, 2]),
        reasons=["idle", "full", "full"],
    )


def test_batches_are_counted_once_however_many_answers_came_of_them() -> None:
    found = told(timed(), [])
    assert found is not None
    assert (found.batch_sizes, found.reasons) == ({1: 1.0, 2: 1.0}, {"full": 1.0, "idle": 1.0})
    # Batches run for 3 s in all, while two slots have 10 s each.
    assert found.busy_share == pytest.approx(0.15)


def test_the_parts_of_the_mean_add_up_to_it() -> None:
    records = [job(0.010, BatchView(2, "full", 0.001, 0.004, 0.002)), job(0.020, BatchView(1, "idle", 0.001, 0.002, 0.0))]
    found = told(MergedTally(), records, mean_ms=30.0)
    assert found is not None
    assert found.stages_ms == pytest.approx(
        {"queue": 15.0, "preprocess": 1.0, "inference": 3.0, "postprocess": 1.0, "rest": 10.0}
    )
    assert (found.source, found.busy_share) == ("the records of 2 jobs", None)
    assert found.queue is not None
    assert found.queue.max_ms == pytest.approx(20.0)


def test_without_a_word_from_the_server_nothing_is_made_up() -> None:
    assert told(MergedTally(), [job(0.1, None)]) is None


def test_counters_are_reported_by_their_rise() -> None:
    assert counter_increases(
        {"jobs_succeeded": 3.0, "retried": 1.0}, {"jobs_succeeded": 8.0, "retried": 1.0, "rejected_depth": 2.0}
    ) == {
        "jobs_succeeded": 5.0,
        "rejected_depth": 2.0,
    }
