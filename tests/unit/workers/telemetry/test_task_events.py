"""What Flower receives: the number of successes, and the outcomes of jobs that were given back without a result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.events.event import Event
from celery.events.state import State

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import Ending, GiveBack, Settled
from penstock.job import JobId, JobState, new_job_id
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batch import Release
from penstock.workers.telemetry.task_events import EventFeed, Sampler, sends_task_events


def test_every_success_is_shown_up_to_the_rate_and_no_more() -> None:
    sampler = Sampler(per_s=500)
    assert [sampler.take(300, 10.0), sampler.take(300, 10.5), sampler.take(300, 10.9)] == [300, 200, 0]


def test_the_next_second_starts_anew() -> None:
    sampler = Sampler(per_s=500)
    sampler.take(900, 10.0)
    assert sampler.take(32, 11.0) == 32


def test_events_are_made_for_those_who_asked_for_tasks_and_not_for_heartbeats() -> None:
    """Regression: heartbeats enable the dispatcher too, which then made events for nobody: a third of a worker's CPU."""
    cases = [(True, {"worker"}, False), (True, {"worker", "task"}, True), (True, set(), True), (False, set(), False)]
    for enabled, groups, wanted in cases:
        assert sends_task_events(SimpleNamespace(enabled=enabled, groups=groups)) is wanted, groups
    assert not sends_task_events(None)


@pytest.fixture
def feed() -> EventFeed:
    made = EventFeed(None, hostname="here")
    made.follow(SimpleNamespace(event_dispatcher=SimpleNamespace(enabled=True, groups=set())))
    return made


def test_a_feed_wants_batches_only_while_somebody_listens(feed: EventFeed) -> None:
    assert feed.wants_every_batch
    feed.follow(SimpleNamespace(event_dispatcher=SimpleNamespace(enabled=True, groups={"worker"})))
    assert not feed.wants_every_batch


def batch_of(*ids: JobId, attempts: int = 1, queued_s: float = 0.0) -> Any:
    jobs = [SimpleNamespace(id=id, attempts=attempts, created_at=1_000.0 - queued_s) for id in ids]
    return SimpleNamespace(jobs=jobs, size=len(ids), leased_at=1_000.0, stamp=SimpleNamespace(inference_s=0.1), endings=[])


def crashed(*ids: JobId) -> Release:
    return Release(tuple(GiveBack(id, "token") for id in ids), "w1", ReleaseReason.CRASHED)


def sent(feed: EventFeed) -> list[tuple[str, str]]:
    return [(kind, fields["uuid"]) for kind, fields in feed._events]


def test_a_job_given_up_after_a_crash_has_failed_and_its_neighbour_is_tried_again(feed: EventFeed) -> None:
    spec, dead, alive = ModelSpec("m", "m.py"), new_job_id("m"), new_job_id("m")
    feed.on_claimed(spec, batch_of(dead, alive))
    feed.on_given_back(spec, crashed(dead, alive), [Settled.DEAD, Settled.OK])
    assert sent(feed)[-2:] == [("task-failed", str(dead)), ("task-retried", str(alive))]


def test_of_jobs_that_flower_was_not_shown_it_hears_the_failures_only(feed: EventFeed) -> None:
    spec, dead, alive = ModelSpec("m", "m.py"), new_job_id("m"), new_job_id("m")
    feed.on_given_back(spec, crashed(dead, alive), [Settled.DEAD, Settled.OK])
    assert sent(feed) == [(kind, str(dead)) for kind in ("task-received", "task-started", "task-failed")]


@pytest.mark.parametrize(("attempts", "queued_s"), [(1, 7.5), (2, 0.0)])
def test_celery_itself_reads_from_the_events_how_long_a_job_was_queued(feed: EventFeed, attempts: int, queued_s: float) -> None:
    """Regression: a job was shown as received in the moment it started. The store's clock is another than this machine's."""
    id = new_job_id("m")
    feed.on_claimed(ModelSpec("m", "m.py"), batch_of(id, attempts=attempts, queued_s=7.5))
    state = State()
    for kind, fields in feed._events:
        state.event({**Event(kind, **fields), "hostname": "here", "clock": 1, "local_received": fields["timestamp"]})
    task = state.tasks[str(id)]
    assert (task.state, task.received) == ("STARTED", pytest.approx(task.started - queued_s))


def test_a_failure_that_flower_was_not_shown_comes_with_the_time_it_was_queued(feed: EventFeed) -> None:
    id = new_job_id("m")
    batch = batch_of(id, queued_s=3.0)
    batch.endings = [Ending(id, "1:w:n", JobState.FAILED, error_code="bad")]
    feed.on_settled(ModelSpec("m", "m.py"), batch, [Settled.OK], 0.0)
    times = {kind: fields["timestamp"] for kind, fields in feed._events}
    assert times["task-started"] - times["task-received"] == pytest.approx(3.0)
    assert times["task-failed"] == times["task-started"]
