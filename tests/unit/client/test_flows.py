from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Media
from penstock.client import flows
from penstock.client.flows import Flow, Pause, Reply
from penstock.client.problems import JobFailed, WaitTimeout
from penstock.client.protocol import Answer, HttpCall
from penstock.client.views import job_view
from penstock.errors import Overloaded
from tests.unit.client.scripted_gateway import job

JSON = {"content-type": "application/json"}
QUEUED = job_view(job())


def said(status: int, body: Any, **headers: str) -> Answer:
    return Answer(status, {**JSON, **headers}, json.dumps(body).encode())


def played(flow: Flow[Any], answer: Callable[[HttpCall, float], tuple[Answer, float]]) -> tuple[Any, list[HttpCall | Pause]]:
    """Drive a flow with a clock that advances only by the answers and pauses of the script."""
    now, steps = 0.0, []
    try:
        step = next(flow)
        while True:
            steps.append(step)
            if isinstance(step, Pause):
                found, now = flows.NOTHING, now + step.seconds
            else:
                found, now = answer(step, now)
            step = flow.send(Reply(found, now))
    except StopIteration as end:
        return end.value, steps


def script(*answers: Answer, each_s: float = 5.0) -> Callable[[HttpCall, float], tuple[Answer, float]]:
    lines = list(answers)
    return lambda call, now: (lines.pop(0), now + each_s)


def test_waiting_polls_the_jobs_own_link_until_it_ends() -> None:
    ended, steps = played(
        flows.wait_flow(QUEUED, timeout_s=None, now=0.0), script(said(200, job("running")), said(200, job("failed")))
    )
    assert ended.status == "failed"
    assert [step.url for step in steps if isinstance(step, HttpCall)] == ["/linked/job", "/linked/job"]


def test_an_ended_job_is_not_polled_again() -> None:
    done = job_view(job("succeeded", finished_at="2026-11-20T00:00:00.000Z"))
    ended, steps = played(flows.wait_flow(done, timeout_s=None, now=0.0), script())
    assert (ended.status, steps) == ("succeeded", [])


def test_a_job_known_only_by_its_result_is_looked_up_once() -> None:
    ended, steps = played(
        flows.wait_flow(job_view(job("succeeded")), timeout_s=None, now=0.0), script(said(200, job("succeeded")))
    )
    assert (ended.status, len(steps)) == ("succeeded", 1)


def test_the_last_poll_is_cut_to_what_is_left_of_the_timeout() -> None:
    with pytest.raises(WaitTimeout) as caught:
        played(
            flows.wait_flow(QUEUED, timeout_s=30.0, now=0.0),
            lambda call, now: (said(200, job("queued")), now + min(call.wait_s, 25.0)),
        )
    assert caught.value.job.status == "queued"
    assert isinstance(caught.value, TimeoutError)


def test_polls_that_are_not_held_back_are_paced() -> None:
    answers = [said(200, job("queued"))] * 40
    with pytest.raises(WaitTimeout):
        played(flows.wait_flow(QUEUED, timeout_s=20.0, now=0.0), script(*answers, each_s=0.0))


def test_a_result_is_one_call_when_the_gateway_holds_it() -> None:
    found, steps = played(flows.result_flow(QUEUED, timeout_s=None, now=0.0), script(said(200, {"y": 16})))
    assert found.value == {"y": 16}
    assert found.job.status == "succeeded"
    assert len(steps) == 1


def test_an_unfinished_result_is_polled_again() -> None:
    answers = script(said(202, job("queued")), said(200, 16), each_s=25.0)
    found, _ = played(flows.result_flow(QUEUED, timeout_s=None, now=0.0), answers)
    assert found.value == 16


def test_a_result_elsewhere_is_fetched_from_where_it_lies() -> None:
    answers = script(Answer(303, {"location": "https://blobs/x"}, b""), Answer(200, {"content-type": "image/png"}, b"png"))
    found, steps = played(flows.result_flow(QUEUED, timeout_s=None, now=0.0), answers)
    assert found.value == Media(b"png", "image/png")
    assert isinstance(steps[1], HttpCall)
    assert steps[1].url == "https://blobs/x"


def test_a_failed_job_raises_with_its_own_error_and_record() -> None:
    problem = {"status": 409, "code": "handler_error", "detail": "ValueError: no"}
    answers = script(said(409, problem), said(200, job("failed", error={"code": "handler_error", "message": "ValueError: no"})))
    with pytest.raises(JobFailed, match="ValueError: no") as caught:
        played(flows.result_flow(QUEUED, timeout_s=None, now=0.0), answers)
    assert caught.value.job.status == "failed"


def test_a_refused_question_about_a_running_job_is_not_the_jobs_failure() -> None:
    answers = script(said(429, {"code": "overloaded", "detail": "slow down"}), said(200, job("running")))
    with pytest.raises(Overloaded):
        played(flows.result_flow(QUEUED, timeout_s=None, now=0.0), answers)
