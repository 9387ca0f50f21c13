"""One job: its stages and attempts as bars, and the actions that are possible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.access import Role
from penstock.gateway.auth.keys import Caller
from penstock.gateway.dashboard.rows.job_rows import actions, attempt_bars, job_row, stage_bars
from penstock.gateway.jobs.timeline import TimelineStage, timeline
from penstock.job import Attempt, Job, JobError, JobState, Priority, new_job_id

JOB = Job(new_job_id("square"), JobState.SUCCEEDED, "1", Priority.BULK, created_at=100.0, deadline_at=999.0, finished_at=110.0)


def test_stages_lie_side_by_side_and_the_shortest_can_still_be_pointed_at() -> None:
    stages = [
        TimelineStage("queue", 9.9, 0.99),
        TimelineStage("decode", 0.0, 0.0),
        TimelineStage("store", 0.0001, 0.00001, "short"),
    ]
    queue, store = stage_bars(stages)
    assert (queue.start, queue.name, store.title, store.note) == (0.0, "queue", "stored the result", "short")
    assert store.start == pytest.approx(queue.width, abs=0.01)
    assert store.width >= 0.4
    assert queue.width + store.width == pytest.approx(100.0, abs=0.01)
    assert stage_bars([]) == []


def test_attempts_lie_where_they_were_in_the_jobs_life() -> None:
    tries = (
        Attempt(1, "w.1", "b1", claimed_at=102.0, ended_at=104.0, end="crashed"),
        Attempt(2, "w.1", "b2", claimed_at=109.9999, ended_at=110.0, end="succeeded"),
    )
    lost, last = attempt_bars(timeline(replace(JOB, tries=tries), now=200.0, locations={}))
    assert (lost.start, lost.width, lost.name, lost.title) == (20.0, 20.0, "crashed", "attempt 1: crashed")
    assert (last.start + last.width <= 100.0, last.width) == (True, 0.5)


def test_an_attempt_under_way_reaches_to_now() -> None:
    running = replace(JOB, state=JobState.LEASED, finished_at=None, tries=(Attempt(1, "w", "b", claimed_at=105.0),))
    [bar] = attempt_bars(timeline(running, now=110.0, locations={}))
    assert (bar.name, bar.start, bar.width, bar.seconds) == ("running", 50.0, 50.0, 5.0)


@pytest.mark.parametrize(
    ("state", "roles", "cancel", "replay"),
    [
        (JobState.QUEUED, {Role.SUBMIT}, True, False),
        (JobState.LEASED, {Role.MANAGE}, True, False),
        (JobState.LEASED, {Role.READ}, False, False),
        (JobState.FAILED, {Role.MANAGE}, False, True),
        (JobState.DEAD, {Role.SUBMIT}, False, True),
        (JobState.EXPIRED, {Role.READ}, False, False),
        (JobState.SUCCEEDED, {Role.MANAGE}, False, False),
    ],
)
def test_a_page_offers_what_its_viewer_may_do(state: JobState, roles: set[Role], cancel: bool, replay: bool) -> None:
    acts = actions(replace(JOB, state=state), Caller("o", frozenset(roles)))
    assert (acts.cancel, acts.replay) == (cancel, replay)


def test_a_cancel_that_was_requested_is_not_offered_again() -> None:
    assert not actions(replace(JOB, state=JobState.LEASED, cancel_requested=True), Caller("o", frozenset(Role))).cancel


def test_a_row_of_the_list_shows_a_jobs_state_age_and_fault() -> None:
    row = job_row(replace(JOB, state=JobState.DEAD, error=JobError("poison", "died"), replayed_as=new_job_id("square")), 160.0)
    assert (row.status, row.tone, row.age, row.took, row.error, row.replayed) == (
        "failed", "bad", "1 min ago", "10 s", "poison", True,
    )  # fmt: skip
    waiting = job_row(replace(JOB, state=JobState.QUEUED, finished_at=None), 100.5)
    assert (waiting.age, waiting.took, waiting.error) == ("just now", "–", "")
