from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from penstock import errors
from penstock.gateway.asgi.problems import (
    EndedWithoutOutput,
    MethodNotAllowed,
    NoAnswerYet,
    NoResult,
    ProblemResponse,
    internal_error,
    is_of_input,
    render,
    request_id_of,
    status_of,
    titles,
)
from penstock.job import JobState, new_job_id

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.PenstockError)]


def content_of(problem: ProblemResponse) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(problem.body)
    return content


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_of_the_house_has_a_status(kind: type[errors.PenstockError]) -> None:
    problem = render(kind("why"), request_id="r1", instance="/x")
    assert problem.status == content_of(problem)["status"] >= 400
    assert {"type", "title", "code", "detail", "request_id"} <= content_of(problem).keys()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.MalformedId("x"), 400),
        (errors.NotFound("x"), 404),
        (errors.Gone("x"), 410),
        (errors.InvalidInput("x"), 422),
        (errors.Overloaded("x"), 429),
        (errors.InternalError("x"), 500),
        (errors.StoreUnavailable("x"), 503),
    ],
)
def test_the_status_says_whose_fault_it_is(error: errors.PenstockError, status: int) -> None:
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("state", "code", "status"),
    [
        (JobState.FAILED, "invalid_input", 422),
        (JobState.FAILED, "handler_error", 500),
        (JobState.FAILED, "timeout", 504),
        (JobState.FAILED, "oom", 507),
        (JobState.DEAD, "poison", 500),
        (JobState.CANCELLED, "", 409),
        (JobState.EXPIRED, "", 504),
    ],
)
def test_a_job_without_output_is_answered_by_its_end(state: JobState, code: str, status: int) -> None:
    job = new_job_id("square")
    problem = render(EndedWithoutOutput("why", job=job, state=state, code=code), request_id="r1", instance="/x")
    assert problem.status == status
    assert content_of(problem)["job"] == str(job)
    assert (b"x-should-retry", b"false") in problem.headers


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.DEAD, JobState.CANCELLED, JobState.EXPIRED])
@pytest.mark.parametrize("code", ["handler_error", "timeout", "load_failed", "oom", "invalid_input"])
def test_reading_the_result_of_a_job_without_one_is_a_conflict_whatever_the_model_did(state: JobState, code: str) -> None:
    # Regression: a 5xx for what a model did makes a proxy take the gateway out of service.
    problem = render(NoResult("why", job=new_job_id("square"), state=state, code=code), request_id="r1", instance="/x")
    assert (problem.status, content_of(problem)["code"]) == (409, code)
    assert (b"x-should-retry", b"false") in problem.headers


def test_a_code_that_the_model_chose_leads_to_the_page_of_a_models_failures() -> None:
    # Regression: the type of the problem named a page that does not exist, and its title was "Internal Server Error".
    ended = EndedWithoutOutput("no vowels", job=new_job_id("square"), state=JobState.FAILED, code="too_quiet")
    problem = content_of(render(ended, request_id="r1", instance="/x"))
    assert (problem["status"], problem["code"], problem["type"]) == (500, "too_quiet", "/problems/handler_error")
    assert problem["title"] == titles()["handler_error"]


@pytest.mark.parametrize("code", ["bad_image", "invalid_date", "not_found", "conflict", "unauthorized"])
def test_a_models_code_for_a_bad_input_is_the_callers_fault_and_its_page_is_that_of_inputs(code: str) -> None:
    # Regression: a picture that the model could not read was a 500, like a bug of the model.
    ended = EndedWithoutOutput("not an image", job=new_job_id("square"), state=JobState.FAILED, code=code)
    problem = content_of(render(ended, request_id="r1", instance="/x"))
    assert (problem["status"], problem["code"], problem["type"]) == (422, code, "/problems/invalid_input")
    assert problem["title"] == titles()["invalid_input"]


@pytest.mark.parametrize("code", sorted(code for code in titles() if code.startswith("bad_") and code != "bad_request"))
def test_codes_of_our_own_keep_the_status_that_they_have(code: str) -> None:
    assert not is_of_input(code)


def test_capacity_problems_say_when_to_come_back() -> None:
    headers = dict(render(errors.Overloaded("x", retry_after_s=10.0), request_id="r1", instance="/x").headers)
    assert 8 <= int(headers[b"retry-after"]) <= 12


def test_the_schema_faults_are_listed() -> None:
    fault = {"pointer": "/x", "detail": "no number"}
    assert content_of(render(errors.InvalidInput("x", errors=[fault]), request_id="r1", instance="/x"))["errors"] == [fault]


def test_a_wrong_method_is_told_the_right_ones() -> None:
    assert (b"allow", b"GET") in render(MethodNotAllowed("x", allow="GET"), request_id="r1", instance="/x").headers


def test_a_timed_out_answer_names_its_job() -> None:
    job = new_job_id("square")
    assert content_of(render(NoAnswerYet("x", job=job), request_id="r1", instance="/x"))["job"] == str(job)


def test_our_own_faults_reveal_nothing_but_the_request_id() -> None:
    body = render(errors.InternalError("the record /srv/secret is torn, leased -> leased"), request_id="r1", instance="/x").body
    assert b"r1" in body
    assert b"secret" not in body
    assert b"leased" not in body


def test_a_full_disk_is_named_without_its_path() -> None:
    fault = errors.StoreUnavailable("2 blobs cannot be written to /srv/secret: No space left on device")
    body = render(fault, request_id="r1", instance="/x").body
    assert b"disk" in body
    assert b"full" in body
    assert b"secret" not in body


def test_a_bug_is_a_500_that_names_the_request() -> None:
    problem = render(internal_error(), request_id="r1", instance="/x")
    assert (problem.status, content_of(problem)["request_id"]) == (500, "r1")


@pytest.mark.parametrize("given", [None, b"", b"a b", b"x" * 65, b"\x1b[31m", "é".encode()])
def test_a_request_id_that_could_harm_a_log_is_replaced(given: bytes | None) -> None:
    assert len(request_id_of(given)) == 32


def test_a_harmless_request_id_is_kept() -> None:
    assert request_id_of(b"req-1.A_z") == "req-1.A_z"


def test_every_code_has_a_title() -> None:
    # Only what is raised as one of its subclasses, and what no request meets, has none. Which subclasses there are must not be
    # asked here: other modules have some, and whether they are loaded depends on the tests before this one.
    without = {kind.kind for kind in ERRORS} - titles().keys()
    assert without == {"error", "caller_error", "capacity", "config_error"}
