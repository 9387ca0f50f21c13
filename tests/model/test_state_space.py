"""Every reachable state of one job and two workers keeps the invariants, and no guard of the store can be left out.

Of states that differ by the names of workers and tokens alone, one is looked at.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from tests.model.job_machine import LIVE, Rules, World, broken, representative, steps


@dataclass
class Search:
    """All states that can be reached from the first state, with the way to the first broken invariant if there is one."""

    before: dict[World, tuple[World, str] | None] = field(default_factory=dict)
    after: dict[World, list[World]] = field(default_factory=dict)
    found: str = ""
    way: list[str] = field(default_factory=list)

    def run(self, rules: Rules) -> Search:
        start = World()
        self.before[start] = None
        todo = deque([start])
        while todo:
            world = todo.popleft()
            self.found = broken(world)
            if self.found:
                self.way = self._way_to(world)
                return self
            todo.extend(self._expand(world, rules))
        return self

    def dead_ends(self) -> list[World]:
        """Return the states from which no final state can be reached (L1)."""
        backwards: dict[World, list[World]] = {}
        for world, nexts in self.after.items():
            for other in nexts:
                backwards.setdefault(other, []).append(world)
        todo = deque(world for world in self.after if world.job.state and world.job.state not in LIVE)
        good = set(todo)
        while todo:
            fresh = [w for w in backwards.get(todo.popleft(), ()) if w not in good]
            good.update(fresh)
            todo.extend(fresh)
        return [world for world in self.after if world not in good]

    def _expand(self, world: World, rules: Rules) -> list[World]:
        fresh = []
        self.after[world] = []
        for name, step in steps(world, rules):
            other = representative(step, rules)
            self.after[world].append(other)
            if other not in self.before:
                self.before[other] = (world, name)
                fresh.append(other)
        return fresh

    def _way_to(self, world: World) -> list[str]:
        way = []
        while (step := self.before[world]) is not None:
            world, name = step
            way.append(name)
        return way[::-1]


def test_the_design_keeps_every_invariant_in_every_reachable_state() -> None:
    search = Search().run(Rules())
    assert search.found == "", search.way
    assert len(search.before) > 1_000, "the search covers almost nothing; an action is missing"


def test_a_final_state_can_be_reached_from_everywhere() -> None:
    assert Search().run(Rules()).dead_ends() == []


@pytest.mark.parametrize(
    ("rules", "invariants"),
    [
        pytest.param(Rules(fence=False), {"I1"}, id="no fence"),
        pytest.param(Rules(state_check=False), {"I2"}, id="no state check"),
        pytest.param(Rules(atomic_claim=False), {"I3 orphan"}, id="pop and record are two steps"),
        pytest.param(Rules(attempt_limit=False), {"I4"}, id="no limit of attempts"),
        pytest.param(Rules(crash_limit=False), {"crash limit"}, id="no limit of crashes"),
        pytest.param(Rules(loss_limit=False), {"loss limit"}, id="no limit of lost workers"),
        pytest.param(Rules(row_limit=False), {"row limit"}, id="no limit of workers lost in a row"),
        pytest.param(Rules(dedup=False), {"I9"}, id="no dedup"),
        pytest.param(Rules(prompt_cancel=False), {"I3"}, id="cancel leaves the job in its queue"),
        pytest.param(Rules(cancel_wins=False), {"rule 7"}, id="finish ignores a cancel request"),
        pytest.param(
            Rules(nonce=False, power_cuts=1, reader=False), {"I7"}, id="the token is a bare epoch, and the store rolls back"
        ),
    ],
)
def test_a_missing_guard_is_found(rules: Rules, invariants: set[str]) -> None:
    search = Search().run(rules)
    assert search.found in invariants, search.way


def test_tokens_with_a_nonce_stay_unique_after_a_power_cut() -> None:
    search = Search().run(Rules(power_cuts=1, reader=False))
    assert search.found == "", search.way


def test_a_power_cut_without_fsync_can_retract_an_answer_that_a_client_has_seen() -> None:
    search = Search().run(Rules(power_cuts=1))
    assert search.found == "I8"
    assert search.way[-2:] == ["read", "power cut"]


def test_a_sweep_that_keeps_the_token_breaks_nothing_because_the_state_is_checked_too() -> None:
    assert Search().run(Rules(clear_token=False)).found == ""
