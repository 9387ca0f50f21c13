"""Only modules with a reason read the wall clock (`make clocks`)."""

from __future__ import annotations

import ast

import pytest

from tests import clocks


def test_nobody_reads_the_wall_clock_without_a_reason() -> None:
    assert clocks.faults(clocks.sources()) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("now = time.time()", "time.time"),
        ("def __init__(self, clock=time.time): ...", "time.time"),
        ("from time import time_ns", "time.time_ns"),
        ("at = datetime.now(UTC)", "datetime.now"),
        ("at = datetime.datetime.utcnow()", "datetime.utcnow"),
        ("day = date.today()", "date.today"),
        ("text = time.strftime('%H')", "time.strftime"),
    ],
)
def test_every_way_to_read_it_is_seen(text: str, name: str) -> None:
    [fault] = [fault for fault in clocks.faults([("gateway/new.py", ast.parse(text))]) if fault.startswith("gateway/new.py:1")]
    assert name in fault


@pytest.mark.parametrize("text", ["now = time.monotonic()", "now = await store.now()", "at = datetime.fromtimestamp(at, UTC)"])
def test_other_clocks_are_free(text: str) -> None:
    assert list(clocks.reads_in(ast.parse(text))) == []


def test_a_reason_that_nothing_needs_is_a_fault() -> None:
    assert "cli/display.py: tests/clocks.py allows the wall clock, and nothing reads it" in clocks.faults([])
