from __future__ import annotations

import copy
import json
from datetime import UTC, datetime

import pytest

from penstock import errors
from penstock.client.problems import (
    JobCancelled,
    JobExpired,
    JobFailed,
    UnexpectedAnswer,
    ended_error,
    error_from,
    retry_after_s,
)
from penstock.client.views import job_view
from tests.unit.client.scripted_gateway import JOB_ID, job


def answer(**body: object) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "not_found", errors.NotFound),
        (404, "unknown_model", errors.NotFound),
        (409, "conflict", errors.Conflict),
        (422, "idempotency_key_reused", errors.KeyReused),
        (429, "overloaded", errors.Overloaded),
        (503, "store_unavailable", errors.StoreUnavailable),
        (503, "no_worker", errors.NoWorker),
        (500, "handler_error", errors.HandlerError),
        (418, "teapot", errors.PenstockError),
    ],
)
def test_a_problem_becomes_the_error_of_the_same_code_or_else_status(status: int, code: str, kind: type[Exception]) -> None:
    error = error_from(status, {}, answer(code=code, detail="no"))
    assert isinstance(error, kind)
    assert error.kind == code


def test_the_message_is_the_detail_with_its_hint() -> None:
    error = error_from(404, {}, answer(code="not_found", detail="no model 'squar'", hint="did you mean 'square'?"))
    assert str(error) == "no model 'squar'; did you mean 'square'?"
    assert error.hint == "did you mean 'square'?"


def test_schema_faults_keep_their_pointers() -> None:
    error = error_from(422, {}, answer(code="invalid_input", detail="no", errors=[{"pointer": "/x", "detail": "missing"}]))
    assert isinstance(error, errors.InvalidInput)
    assert error.errors == [{"pointer": "/x", "detail": "missing"}]
    assert str(error) == "no (/x: missing)"


def test_a_message_shows_the_first_few_of_many_schema_faults() -> None:
    faults = [{"pointer": f"/{n}", "detail": "missing"} for n in range(8)]
    assert str(error_from(422, {}, answer(code="invalid_input", detail="no", errors=faults))).endswith("and 3 more)")


def test_capacity_errors_say_when_to_come_back() -> None:
    error = error_from(429, {"retry-after": "7"}, answer(code="overloaded", detail="full"))
    assert isinstance(error, errors.Overloaded)
    assert error.retry_after_s == 7.0


def test_an_error_page_of_another_server_is_called_that() -> None:
    error = error_from(404, {}, b"<html>nginx</html>")
    assert isinstance(error, UnexpectedAnswer)
    assert "nginx" in str(error)


def test_a_proxys_503_counts_as_capacity() -> None:
    assert isinstance(error_from(503, {}, b"<html>"), errors.CapacityError)


@pytest.mark.parametrize(("status", "kind"), [("failed", JobFailed), ("cancelled", JobCancelled), ("expired", JobExpired)])
def test_each_bad_end_of_a_job_has_an_error_that_carries_job_and_problem(status: str, kind: type[Exception]) -> None:
    error = ended_error(job_view(job(status, error={"code": "handler_error", "message": "ValueError: x"})))
    assert isinstance(error, kind)
    assert error.job.id == JOB_ID
    assert error.problem.code == "handler_error"
    assert "ValueError: x" in str(error)


def test_a_job_whose_code_raised_names_the_way_to_its_traceback() -> None:
    """Regression: `error: job ... failed: ZeroDivisionError` said nothing of where to look."""
    error = ended_error(job_view(job("failed", error={"code": "handler_error", "message": "ZeroDivisionError"})))
    assert error.hint == f"see where: penstock jobs show {JOB_ID} --traceback"
    assert ended_error(job_view(job("failed", error={"code": "invalid_input", "message": "no number"}))).hint is None


def test_a_failed_job_is_a_handlers_error_to_those_who_catch_it_so() -> None:
    assert isinstance(ended_error(job_view(job("failed"))), errors.HandlerError)


def test_a_copied_error_keeps_its_code() -> None:
    error = copy.copy(error_from(404, {}, answer(code="unknown_model", detail="no")))
    assert error.kind == "unknown_model"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3.0), ("0", 0.0), ("Thu, 20 Nov 2025 10:00:05 GMT", 5.0), ("soon", None), ("", None), ("-4", 0.0)],
)
def test_retry_after_is_read_in_both_its_forms(text: str, seconds: float | None) -> None:
    assert retry_after_s({"retry-after": text}, now=datetime(2025, 11, 20, 10, tzinfo=UTC)) == seconds
