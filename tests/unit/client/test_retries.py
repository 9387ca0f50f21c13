from __future__ import annotations

import pytest

from penstock.client.calls import predict_call, result_call, submit_call
from penstock.client.protocol import LONGEST_POLL_S, Answer, HttpCall, InputBody
from penstock.client.retries import RetryBudget, RetryPolicy, TransportFault
from penstock.client.views import job_view
from tests.unit.client.scripted_gateway import job

SUBMIT = submit_call("square", InputBody("application/json", b"1"))
PREDICT = predict_call("square", InputBody("application/json", b"1"))
POLICY = RetryPolicy(max_attempts=5, first_wait_s=0.25, max_wait_s=30.0)


def may_repeat(call: HttpCall, status: int, *, attempt: int = 1, **headers: str) -> bool:
    plain = {name.replace("_", "-"): value for name, value in headers.items()}
    return POLICY.allows_repeat(call, Answer(status, plain, b""), attempt=attempt)


@pytest.mark.parametrize(("status", "again"), [(400, False), (404, False), (409, False), (429, True), (500, False)])
def test_only_what_may_pass_by_itself_is_tried_again(status: int, again: bool) -> None:
    assert may_repeat(SUBMIT, status) is again


def test_bad_gateway_is_tried_again_only_for_calls_that_may_run_twice() -> None:
    assert may_repeat(SUBMIT, 502)
    assert not may_repeat(PREDICT, 502)
    assert may_repeat(PREDICT, 503)


def test_a_gateway_timeout_is_tried_again_only_when_the_gateway_says_when() -> None:
    assert not may_repeat(SUBMIT, 504)
    assert may_repeat(SUBMIT, 504, retry_after="1")


def test_the_gateways_own_word_on_retrying_wins() -> None:
    assert not may_repeat(SUBMIT, 503, x_should_retry="false")
    assert may_repeat(SUBMIT, 500, x_should_retry="true")


def test_a_wait_longer_than_our_patience_is_the_callers_to_decide() -> None:
    assert may_repeat(SUBMIT, 429, retry_after="30")
    assert not may_repeat(SUBMIT, 429, retry_after="31")


def test_nothing_is_sent_again_that_could_only_come_too_late() -> None:
    # Regression: `predict(deadline_s=0.2)` on a busy model took 21 s, because the client waited as long as each refusal asked.
    body = InputBody("application/json", b"1")
    full = Answer(429, {"retry-after": "3"}, b"")
    assert not POLICY.allows_repeat(predict_call("square", body, deadline_s=3.0), full, attempt=1)
    patient = submit_call("square", body, deadline_s=10.0)
    assert POLICY.allows_repeat(patient, full, attempt=1, elapsed_s=6.0)
    assert not POLICY.allows_repeat(patient, full, attempt=2, elapsed_s=7.0)


def test_a_wait_with_a_timeout_of_its_own_is_not_outlasted_by_retries() -> None:
    away = Answer(503, {"retry-after": "5"}, b"")
    view = job_view(job())
    assert not POLICY.allows_repeat(result_call(view, wait_s=2.0), away, attempt=1)
    assert POLICY.allows_repeat(result_call(view, wait_s=LONGEST_POLL_S), away, attempt=1)


def test_attempts_are_bounded() -> None:
    assert may_repeat(SUBMIT, 503, attempt=4)
    assert not may_repeat(SUBMIT, 503, attempt=5)


def test_without_an_answer_only_calls_that_may_run_twice_are_repeated() -> None:
    lost, refused = TransportFault("lost", sent=True), TransportFault("refused", sent=False)
    assert POLICY.allows_repeat(SUBMIT, lost, attempt=1)
    assert not POLICY.allows_repeat(PREDICT, lost, attempt=1)
    assert POLICY.allows_repeat(PREDICT, refused, attempt=1)


def test_waits_double_with_jitter_up_to_a_cap() -> None:
    fault = TransportFault("refused", sent=False)
    assert POLICY.wait_s(fault, attempt=1, chance=1.0) == 0.25
    assert POLICY.wait_s(fault, attempt=3, chance=1.0) == 1.0
    assert POLICY.wait_s(fault, attempt=3, chance=0.0) == 0.5
    assert POLICY.wait_s(fault, attempt=20, chance=1.0) == 30.0


def test_retry_after_is_never_undercut() -> None:
    asked = Answer(429, {"retry-after": "10"}, b"")
    assert POLICY.wait_s(asked, attempt=1, chance=0.0) == 10.0
    assert POLICY.wait_s(asked, attempt=1, chance=1.0) == 12.0


def test_retries_stay_below_a_tenth_of_the_requests_above_the_floor() -> None:
    budget = RetryBudget(share=0.1, floor=10)
    retries = 0
    for _ in range(1_000):
        budget.spend_request(now=0.0)
        while budget.take_retry(now=0.0):
            retries += 1
    assert 100 <= retries <= 110


def test_the_floor_comes_back_with_time_but_no_more_than_the_floor() -> None:
    budget = RetryBudget(share=0.1, floor=10)
    while budget.take_retry(now=0.0):
        pass
    assert budget.take_retry(now=6.0)
    assert not budget.take_retry(now=6.0)
    assert sum(budget.take_retry(now=10_000.0) for _ in range(50)) == 10
