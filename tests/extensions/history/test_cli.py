"""`penstock history`: the rows of its table, and times that it does not take."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli import exits
from penstock.extensions.history.cli import is_idle, remarks, rows_of
from penstock.extensions.history.gateway.view import history_of, view
from penstock.extensions.history.gateway.window import HistoryRange, window_of
from penstock.extensions.history.store import (
    ACCEPTED,
    BUSY,
    COVERED,
    ITEMS,
    OLDEST,
    REASONS,
    SLOT_TIME,
    SUCCEEDED,
    WAITING,
    HistoryStep,
)
from tests.command import called_here

STEP = HistoryStep(
    1_000,
    {COVERED: 8_000, ACCEPTED: 16, SUCCEEDED: 8, ITEMS: 6, REASONS["idle"]: 3, BUSY: 50, SLOT_TIME: 200},
    {WAITING: 3, OLDEST: 4_200},
    {40: 1},
    {20: 1},
)


def shown(range_s: int, step_s: int) -> dict[str, Any]:
    steps = {STEP.at: STEP, 990: HistoryStep(990, {COVERED: 10_000, SLOT_TIME: 10_000})}
    found = view(history_of(steps, model="m", window=window_of(HistoryRange(range_s), step_s, 1_009.0)))
    return {**found, "at": [at + 86_400 * 20_000 for at in found["at"]]}


def test_a_step_is_a_row_of_rates_times_and_levels() -> None:
    *_, before, last = rows_of(shown(300, 10))
    assert last == (
        *("00:16:40", "2", "1", "0"),
        *("939 ms", "939 ms", "939 ms", "29 ms", "29 ms", "29 ms", "3", "4.2 s", "2", "25 %"),
    )
    assert before[1:4] == ("0", "0", "0")


def test_the_gpus_have_a_column_where_there_are_any() -> None:
    found = shown(300, 10)
    assert len(rows_of({**found, "device_busy_share": [None] * 29 + [0.5]})[-1]) == len(rows_of(found)[-1]) + 1
    assert rows_of({**found, "device_busy_share": [None] * 29 + [0.5]})[-1][-1] == "50 %"


def test_longer_steps_have_their_date() -> None:
    assert rows_of(shown(21_600, 60))[-1][0] == "2024-10-04 00:16"


def test_what_is_idle_or_not_known_can_be_left_out_and_this_is_said() -> None:
    rows = rows_of(shown(300, 10))
    assert [is_idle(row) for row in rows] == [*[True] * 29, False]
    said = remarks({**shown(300, 10), "away": ["far"]}, idle=29)
    assert said[0].startswith("percentiles are within 9.05 %")
    assert said[1:] == [
        "29 steps in which nothing happened left out; --all shows them",
        "without far: the store does not answer",
    ]


@pytest.mark.parametrize(("flag", "text"), [("--last", "soon"), ("--last", "1w"), ("--from", "yesterday"), ("--to", "12:00")])
def test_a_time_that_cannot_be_read_is_wrong_usage(flag: str, text: str) -> None:
    done = called_here("history", "square", flag, text, env={})
    assert done.returncode == exits.USAGE
    assert flag in done.stderr
    assert text in done.stderr
