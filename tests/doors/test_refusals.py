"""What is refused, and how each protocol words it: one test per class of error that a caller can bring about."""

from __future__ import annotations

import pytest

from tests.doors.check import assert_comes_back, assert_refused, check
from tests.doors.door import Door
from tests.doors.stack import INLINE_BYTES, MAX_JSON_BYTES, Stack

CODES = (
    "handler_error",
    "my_own",
    "bad_image",
    "invalid_input",
    "too_large",
    "input_url_failed",
    "oom",
    "timeout",
    "load_failed",
)


@pytest.mark.parametrize("code", CODES)
@check("failures")
def test_the_failure_of_a_model_is_worded_as_the_protocol_has_it(stack: Stack, door: Door, code: str) -> None:
    reply = door.ask(stack.main, order={"code": code})
    assert (reply.status, reply.code) == door.refusals[f"failed:{code}"], reply.text


@check("unknown_model")
def test_an_unknown_model_is_refused(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.main, model="nobody"), "unknown_model")


@check("unknown_version")
def test_an_unknown_version_is_refused(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.main, version="9"), "unknown_version")


@check("unreadable")
def test_a_body_that_cannot_be_read_is_refused(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.main, body=b'\xff{"order": '), "unreadable")


@check("empty")
def test_an_empty_body_is_refused(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.main, body=b""), "empty")


@check("media")
def test_a_wrong_media_type_is_refused(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.main, media="text/csv", body=b"a,b"), "media")


@check("misfit")
def test_an_input_beside_the_schema_is_refused_before_it_is_stored(stack: Stack, door: Door) -> None:
    before = stack.main.newest(door.model)["id"]
    assert_refused(door, door.ask(stack.main, misfit=True), "misfit")
    assert stack.main.newest(door.model)["id"] == before


@check("too_large")
def test_too_large_a_body_is_refused(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.main, order={"n": 1, "pad": "x" * (MAX_JSON_BYTES + 1_000)}), "too_large")


@check("counted")
def test_a_refusal_is_counted(stack: Stack, door: Door) -> None:
    before = stack.main.metric("penstock_rejected_total", model=door.model, reason="size")
    door.ask(stack.main, order={"n": 1, "pad": "x" * (MAX_JSON_BYTES + 1_000)})
    assert stack.main.metric("penstock_rejected_total", model=door.model, reason="size") == before + 1


@check("worker")
def test_a_model_without_a_worker_is_refused_at_once(stack: Stack, door: Door) -> None:
    call = door.prepared(stack.main, door.call(model="absent", timeout_s=1.0))
    reply = door.send(stack.main, call)
    assert_refused(door, reply, "no_worker")
    assert_comes_back(reply)


@check("away")
def test_a_store_that_cannot_be_reached_is_said_with_the_seconds(stack: Stack, door: Door) -> None:
    reply = door.ask(stack.away)
    assert_refused(door, reply, "store_unavailable")
    assert_comes_back(reply)


@check("disk")
def test_a_full_disk_refuses_large_inputs(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.full, order={"n": 1, "pad": "x" * 8 * INLINE_BYTES}), "storage_full")


@check("method")
def test_another_method_is_refused(stack: Stack, door: Door) -> None:
    for method in door.other_methods:
        assert_refused(door, door.ask(stack.main, method=method), "method")


@check("headers")
def test_too_many_bytes_of_headers_are_refused(stack: Stack, door: Door) -> None:
    assert_refused(door, door.ask(stack.main, headers={"x-pad": "x" * 17_000}), "headers")


@check("request_id")
def test_the_callers_own_request_id_comes_back_with_a_refusal(stack: Stack, door: Door) -> None:
    reply = door.ask(stack.main, headers={"x-request-id": "mine-1"}, key="reader")
    assert (door.is_refused(reply), reply.headers.get("x-request-id")) == (True, "mine-1")
