"""In every reachable state each waiting owner and suspect is served in turn, and no rule of the turns can be left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

import pytest

from tests.model.turn_machine import (
    Owners,
    Suspecting,
    Suspects,
    Turning,
    held_up,
    owner_steps,
    passed_over,
    suspect_steps,
)

W = TypeVar("W", bound=Hashable)


def search(start: W, steps: Callable[[W], Iterator[tuple[str, W]]], wrong: Callable[[W], str]) -> tuple[str, list[str], int]:
    """Return the first thing that goes wrong, or "", with the way to that state, and how many states the search saw."""
    ways: dict[W, list[str]] = {start: []}
    todo = deque([start])
    while todo:
        world = todo.popleft()
        if found := wrong(world):
            return found, ways[world], len(ways)
        for name, other in steps(world):
            if other not in ways:
                ways[other] = [*ways[world], name]
                todo.append(other)
    return "", [], len(ways)


def owners(rules: Turning) -> tuple[str, list[str], int]:
    return search(Owners(), lambda world: owner_steps(world, rules), passed_over)


def suspects(rules: Suspecting) -> tuple[str, list[str], int]:
    return search(Suspects(), lambda world: suspect_steps(world, rules), held_up)


def test_an_owner_who_waits_is_passed_over_by_each_other_once_at_most() -> None:
    found, way, seen = owners(Turning())
    assert found == "", way
    assert seen > 500, "the search covers almost nothing"


@pytest.mark.parametrize(
    ("rules", "wrong"),
    [
        pytest.param(Turning(served_goes_last=False), "passed over", id="who was served keeps the first place"),
        pytest.param(Turning(stale_turn_is_dropped=False), "nobody served", id="the turn of an empty line stays in the way"),
    ],
)
def test_a_missing_rule_of_the_owners_is_found(rules: Turning, wrong: str) -> None:
    found, way, _ = owners(rules)
    assert found == wrong, way


def test_suspects_and_others_hold_each_other_up_once_at_most() -> None:
    found, way, seen = suspects(Suspecting())
    assert found == "", way
    assert seen > 30, "the search covers almost nothing"


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(Suspecting(others_between=False), id="a suspect runs again and again"),
        pytest.param(Suspecting(lost_goes_last=False), id="who lost goes back to the head"),
        pytest.param(Suspecting(suspects_between=False), id="suspects wait for ever"),
    ],
)
def test_a_missing_rule_of_the_suspects_is_found(rules: Suspecting) -> None:
    found, _, _ = suspects(rules)
    assert found != ""
