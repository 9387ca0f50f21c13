"""The work that waits for a group of workers, in seconds of one worker: what autoscalers divide by."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.backlog import Backlog, SlotCapacity
from penstock.broker.records import QueueStats
from penstock.gateway.models.queues import LEAST_WORK_S, queue_of
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.model_spec import ModelInfo

NOW = 1_000.0


def work(capacity: SlotCapacity, *, workers: int = 0, refused_at: float = 0.0, **counts: Any) -> float:
    version = VersionEntry("1", None, None, capacity)
    entry = ModelEntry(ModelInfo("m"), version, {"1": version}, Backlog(), workers=workers)
    return queue_of(entry, QueueStats("m", NOW, **counts), 0.0, refused_at=refused_at).work_s


def test_it_does_not_change_with_the_number_of_workers_that_do_it() -> None:
    """The time until the queue is empty halves with a second worker, which would take that worker away again."""
    one, four = SlotCapacity(1, 10.0, full_per_s=10.0), SlotCapacity(4, 40.0, full_per_s=40.0)
    assert work(one, workers=1, ready={0: 600}) == work(four, workers=4, ready={0: 600}) == pytest.approx(60.0)


def test_running_and_due_jobs_count_and_those_with_a_later_start_do_not() -> None:
    capacity = SlotCapacity(1, 10.0, full_per_s=10.0)
    assert work(capacity, workers=1, ready={0: 100}, solo=10, leased=50, due=40, delayed=500) == pytest.approx(20.0)


def test_without_workers_it_is_that_of_one_slot_as_it_was() -> None:
    assert work(SlotCapacity(0, 10.0, full_per_s=10.0, start_s=30.0), ready={9: 600}) == pytest.approx(60.0)


@pytest.mark.parametrize("counts", [{"ready": {0: 5_000}}, {"leased": 1}, {"due": 1}, {"refused_at": NOW - 59.0}])
def test_whatever_is_to_be_done_by_a_model_of_unknown_cost_is_worth_one_worker(counts: dict[str, Any]) -> None:
    assert work(SlotCapacity(), **counts) == LEAST_WORK_S


@pytest.mark.parametrize("counts", [{}, {"delayed": 3}, {"refused_at": NOW - 61.0}])
def test_without_anything_to_do_it_is_nothing(counts: dict[str, Any]) -> None:
    assert work(SlotCapacity(1, 10.0, full_per_s=10.0), workers=1, **counts) == 0.0
