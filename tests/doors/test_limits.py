"""What is full: an owner's share, a queue. Both stay full for this whole module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.doors.check import assert_comes_back, assert_refused, check
from tests.doors.door import Call, Door
from tests.doors.doors import DOORS
from tests.doors.stack import KINDS, Stack


def _prepared(stack: Stack, **members: Any) -> Mapping[str, Call]:
    return {door.name: door.prepared(stack.main, door.call(timeout_s=1.0, **members)) for door in DOORS.found}


@pytest.fixture(scope="module")
def crowded(stack: Stack) -> Iterator[Mapping[str, Call]]:
    """Calls, by their doors, of models of which one job runs and one waits, and no more may."""
    calls = _prepared(stack, model="tight")
    with ExitStack() as opened:
        for name in KINDS:
            opened.enter_context(stack.occupied(f"tight-{name}", to_the_brim=True))
        yield calls


@pytest.fixture(scope="module")
def spent(stack: Stack) -> Iterator[Mapping[str, Call]]:
    """Calls, by their doors, of an owner who may have one open job and has it."""
    calls = _prepared(stack, key="few")
    with ExitStack() as opened:
        for name in KINDS:
            opened.enter_context(stack.occupied(name, key="few"))
        yield calls


@check("quota")
def test_the_open_jobs_of_an_owner_are_limited(stack: Stack, door: Door, spent: Mapping[str, Call]) -> None:
    reply = door.send(stack.main, spent[door.name])
    assert_refused(door, reply, "quota_spent")
    assert_comes_back(reply)


@check("full")
def test_a_full_queue_is_refused(stack: Stack, door: Door, crowded: Mapping[str, Call]) -> None:
    reply = door.send(stack.main, crowded[door.name])
    assert_refused(door, reply, "overloaded")
    assert_comes_back(reply)


@check("counted_full")
def test_a_full_queue_is_counted(stack: Stack, door: Door, crowded: Mapping[str, Call]) -> None:
    call = crowded[door.name]
    before = stack.main.metric("penstock_rejected_total", model=call.model, reason="depth")
    door.send(stack.main, call)
    assert stack.main.metric("penstock_rejected_total", model=call.model, reason="depth") == before + 1
