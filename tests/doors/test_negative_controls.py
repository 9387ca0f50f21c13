"""The suite finds a door that does not keep what it says: each check of these fails for a door that is broken on purpose."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.doors import test_access, test_calls, test_observed, test_options, test_refusals
from tests.doors.door import Call, Reply
from tests.doors.door_jobs import JobsDoor
from tests.doors.door_predictions import PredictionsDoor
from tests.doors.doors import doors_named
from tests.doors.stack import Site, Stack

Change, Tell = Callable[[Call], Call], Callable[[Reply], Reply]


class BrokenPredictions(PredictionsDoor):
    """Sends a changed call, or tells of a changed reply."""

    def __init__(
        self, change: Callable[[Call], Call] = lambda call: call, tell: Callable[[Reply], Reply] = lambda reply: reply
    ):
        self._change, self._tell = change, tell

    def send(self, site: Site, call: Call) -> Reply:
        return self._tell(super().send(site, self._change(call)))


class DeafJobs(JobsDoor):
    """Cancels nothing."""

    def cancel(self, site: Site, call: Call, job: str) -> None:
        # A test of a job that goes on would wait for it.
        assert site.job(job)["status"] != "running"


class StayingPredictions(PredictionsDoor):
    """Never hangs up: the call is made by a client that stays."""

    @contextmanager
    def held(self, site: Site, call: Call) -> Iterator[None]:
        site.opened.enter_context(super().held(site, call))
        yield


def dropped(**members: Any) -> BrokenPredictions:
    return BrokenPredictions(lambda call: replace(call, **members))


SILENT = BrokenPredictions(
    tell=lambda reply: replace(reply, headers={name: value for name, value in reply.headers.items() if name != "retry-after"})
)
PLEASED = BrokenPredictions(tell=lambda reply: replace(reply, status=200, code="", n=4.0))
Test = Callable[..., None]
CONTROLS: Mapping[str, tuple[PredictionsDoor | JobsDoor, Sequence[Test]]] = {
    "drops the trace": (
        dropped(trace=""),
        [test_options.test_the_trace_reaches_the_job, test_options.test_the_trace_comes_back],
    ),
    "ignores the key": (
        dropped(key="all"),
        [test_access.test_a_call_without_a_valid_key_is_refused, test_access.test_a_key_without_the_role_is_refused],
    ),
    "mixes up the owners": (dropped(key="all"), [test_access.test_a_job_belongs_to_the_owner_of_its_key]),
    "ignores the rate": (dropped(key="all"), [test_access.test_the_rate_of_a_key_is_kept]),
    "ignores the version": (dropped(version=""), [test_calls.test_a_version_can_be_named]),
    "ignores the deadline": (dropped(deadline_s=None), [test_options.test_a_deadline_can_be_set]),
    "ignores the priority": (dropped(priority=""), [test_options.test_a_priority_can_be_set]),
    "ignores the webhook": (dropped(webhook=""), [test_options.test_a_webhook_hears_of_the_end]),
    "ignores the idempotency key": (
        dropped(idempotency=""),
        [
            test_options.test_a_repeat_with_the_same_key_is_the_same_job,
            test_options.test_the_key_of_another_request_is_refused,
            test_options.test_a_repeat_gets_the_version_of_its_first_job,
        ],
    ),
    "ignores the split": (dropped(version="1"), [test_options.test_the_split_of_the_model_is_followed]),
    "says no seconds": (
        SILENT,
        [
            test_refusals.test_a_model_without_a_worker_is_refused_at_once,
            test_refusals.test_a_store_that_cannot_be_reached_is_said_with_the_seconds,
        ],
    ),
    "is pleased with everything": (
        PLEASED,
        [
            test_refusals.test_an_unknown_model_is_refused,
            test_refusals.test_an_unknown_version_is_refused,
            test_refusals.test_a_body_that_cannot_be_read_is_refused,
            test_refusals.test_an_empty_body_is_refused,
            test_refusals.test_a_wrong_media_type_is_refused,
            test_refusals.test_an_input_beside_the_schema_is_refused_before_it_is_stored,
            test_refusals.test_too_large_a_body_is_refused,
            test_refusals.test_a_full_disk_refuses_large_inputs,
            test_refusals.test_another_method_is_refused,
            test_refusals.test_too_many_bytes_of_headers_are_refused,
            test_refusals.test_the_callers_own_request_id_comes_back_with_a_refusal,
            test_access.test_a_browser_on_a_page_of_another_site_is_refused,
        ],
    ),
    "loses letters": (
        BrokenPredictions(lambda call: replace(call, order={**call.order, "say": "?"})),
        [test_calls.test_any_text_goes_through],
    ),
    "answers something else": (
        BrokenPredictions(tell=lambda reply: replace(reply, n=-1.0, size=0)),
        [
            test_calls.test_an_input_goes_in_and_its_output_comes_out,
            test_calls.test_a_large_input_travels_beside_the_record,
            test_calls.test_a_large_output_travels_beside_the_record,
        ],
    ),
    "takes another route": (dropped(model="orders/2"), [test_observed.test_a_call_is_counted_by_its_route]),
    "is logged as another method": (dropped(method="DELETE"), [test_observed.test_the_access_log_has_a_line_for_the_call]),
    "cancels nothing": (DeafJobs(), [test_options.test_a_job_can_be_cancelled]),
    "stays on the line": (StayingPredictions(), [test_options.test_a_caller_that_leaves_cancels_its_job]),
}


@pytest.mark.parametrize("fault", CONTROLS)
def test_a_broken_door_fails(stack: Stack, fault: str) -> None:
    broken, tests = CONTROLS[fault]
    for test in tests:
        given = {"stack": stack, "door": broken, "patience_s": 0.5, "split": lambda weights: _put_split(stack, weights)}
        wanted = {name: given[name] for name in inspect.signature(test).parameters}
        try:
            with pytest.raises(AssertionError):
                test(**wanted)
        finally:
            stack.main.http.delete("/v1/models/orders/split", headers=stack.main.bearer())


def _put_split(stack: Stack, weights: Mapping[str, float]) -> None:
    answer = stack.main.http.put("/v1/models/orders/split", json={"weights": weights}, headers=stack.main.bearer())
    assert answer.status_code == 200, answer.text


def test_an_extension_adds_its_doors_by_their_names() -> None:
    [door] = doors_named("tests.doors.door_jobs:JobsDoor")
    assert door.name == "jobs"
    assert doors_named("") == []
