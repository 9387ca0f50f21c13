"""A model's history says what happened, whatever befalls those who write it: random tales on a real server."""

from __future__ import annotations

from contextlib import closing
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.extensions.history.store import ACCEPTED, COVERED, FAILED, ITEMS, LENGTHS_S, SUCCEEDED, WAITING, HistoryCounts
from penstock.job import JobState
from tests.contract.test_model_history import Historian

HOUR_S = 3_600
# The store knows a write again for this long, as in history.lua.
REMEMBERED_S = 900
_NAMES = count()
# What may happen, and how often or for how long. Two gateways look, and two workers write; either may be gone for good at any
# time, which is a tale in which it is not named again.
TALES = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 20)),
        st.tuples(st.just("end"), st.integers(1, 20)),
        st.tuples(st.just("fail"), st.integers(1, 5)),
        st.tuples(st.just("wait"), st.integers(1, 700)),
        st.tuples(st.just("freeze"), st.integers(HOUR_S, 3 * HOUR_S)),
        st.tuples(st.just("clock back"), st.integers(1, HOUR_S)),
        st.tuples(st.just("look"), st.integers(1, 2)),
        st.tuples(st.just("write"), st.integers(1, 2)),
        st.tuples(st.just("write again"), st.integers(1, 2)),
    ),
    max_size=40,
)


class Tale:
    """Plays what happens on a store, and counts what its history must say."""

    def __init__(self, history: Historian) -> None:
        self._history, self._now, self._waiting = history, 0, 0
        self._writes: dict[int, tuple[int, int]] = {}
        self.accepted = self.succeeded = self.failed = self.items = self.most_waiting = 0
        self.elapsed_s = 0
        history.look()

    def play(self, what: str, number: int) -> None:
        if what == "submit":
            self._history.submit(number)
            self.accepted += number
            self._waiting += number
        elif what in ("end", "fail"):
            self._end(what, min(number, self._waiting))
        elif what in ("wait", "freeze", "clock back"):
            self._move(-number if what == "clock back" else number)
        elif what == "look":
            self._history.look()
        else:
            self._write(number, again=what == "write again")
        self.most_waiting = max(self.most_waiting, self._waiting)

    def _end(self, what: str, jobs: int) -> None:
        if jobs:
            self._history.end(jobs, JobState.SUCCEEDED if what == "end" else JobState.FAILED)
        self._waiting -= jobs
        self.succeeded += jobs if what == "end" else 0
        self.failed += jobs if what == "fail" else 0

    def _move(self, seconds: int) -> None:
        self._now += seconds
        self.elapsed_s += max(0, seconds)
        self._history.at(self._now)

    def _write(self, worker: int, *, again: bool) -> None:
        """A write under the number of the one before is that one once more, whose reply was lost."""
        number, written_s = self._writes.get(worker, (0, -REMEMBERED_S))
        is_new = not again or self.elapsed_s - written_s >= REMEMBERED_S
        self._writes[worker] = (number + is_new, self.elapsed_s)
        counts = HistoryCounts({ITEMS: 3}, {40: 2, 60: 1}, {8: 3})
        assert self._history.write(counts, writer=f"w{worker}", number=number + is_new) is is_new
        self.items += 3 * is_new

    def close(self) -> None:
        # Just after a look the first one may come too early, if the clock was set back by seconds.
        for _ in range(2):
            self._move(5)
            self._history.look()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TALES)
def test_every_job_is_counted_once_in_steps_of_each_length(redis_url: str, tale: list[tuple[str, int]]) -> None:
    with closing(Historian(redis_url, f"tale{next(_NAMES)}")) as history:
        played = Tale(history)
        for what, number in tale:
            played.play(what, number)
        played.close()
        for level in range(len(LENGTHS_S)):
            steps = history.steps(level).values()
            sums = {number: sum(step.sums.get(number, 0) for step in steps) for number in (ACCEPTED, SUCCEEDED, FAILED, ITEMS)}
            assert sums == {
                ACCEPTED: played.accepted,
                SUCCEEDED: played.succeeded,
                FAILED: played.failed,
                ITEMS: played.items,
            }, level
            assert sum(sum(step.totals.values()) for step in steps) == sum(sum(step.waits.values()) for step in steps)
            assert sum(sum(step.totals.values()) for step in steps) == played.items
            assert max((step.tops.get(WAITING, 0) for step in steps), default=0) <= played.most_waiting
            assert sum(step.sums.get(COVERED, 0) for step in steps) <= 1000 * played.elapsed_s


def test_after_a_freeze_the_rate_is_that_of_the_whole_time(redis_url: str) -> None:
    with closing(Historian(redis_url, f"tale{next(_NAMES)}")) as history:
        history.look()
        history.submit(36)
        history.at(HOUR_S).look()
        [step] = [step for step in history.steps().values() if step.sums.get(ACCEPTED)]
        assert 1000 * step.sums[ACCEPTED] / step.sums[COVERED] == pytest.approx(0.01)
