from __future__ import annotations

import errno
import json

import pytest

from penstock import errors
from penstock.cli import exits
from penstock.client.problems import GatewayUnreachable, UnexpectedAnswer, WaitTimeout, ended_error, error_from
from penstock.client.views import JobView

JOB = JobView(id="x-square", status="failed")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ended_error(JOB), exits.FAILED),
        (GatewayUnreachable("no"), exits.UNREACHABLE),
        (UnexpectedAnswer("no"), exits.UNREACHABLE),
        (errors.ConfigError("no"), exits.CONFIG),
        (errors.NotFound("no"), exits.REFUSED),
        (errors.Overloaded("no"), exits.LATER),
        (WaitTimeout("no", job=JOB), exits.LATER),
        (exits.StartError("no"), exits.NOT_STARTED),
        (errors.InternalError("no"), exits.BUG),
        (ZeroDivisionError(), exits.BUG),
        (KeyboardInterrupt(), exits.INTERRUPTED),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exits.code_of(error) == code


def test_a_full_disk_is_named_and_is_no_bug() -> None:
    with pytest.raises(OSError, match="No space left") as caught, open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")
    assert exits.code_of(caught.value) == exits.FAILED
    assert exits.message_of(caught.value).startswith("the disk is full")
    assert "bug" not in exits.message_of(caught.value)
    named = OSError(errno.ENOSPC, "No space left on device", "/data/up.json")
    assert "/data/up.json cannot be written" in exits.message_of(named)
    assert exits.record_of(named)["code"] == "disk_full"


def test_a_message_says_what_and_what_next_once_each() -> None:
    body = json.dumps({"code": "not_found", "detail": "no model 'squar'", "hint": "did you mean 'square'?"}).encode()
    assert exits.message_of(error_from(404, {}, body)) == "no model 'squar'\n  next: did you mean 'square'?"


def test_a_fault_of_the_gateway_says_what_to_quote() -> None:
    body = json.dumps({"code": "internal", "detail": "The gateway failed.", "hint": "Quote the request_id."}).encode()
    assert exits.message_of(error_from(500, {}, body)) == "The gateway failed.\n  next: Quote the request_id."


def test_a_bug_is_called_one_and_says_how_to_see_more() -> None:
    assert "PENSTOCK_DEBUG=1" in exits.message_of(ZeroDivisionError("division by zero"))
