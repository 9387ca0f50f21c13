from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.models.own_handler import Scheduled, SortedLoop, TextTurn, figures
from benchmarks.models.padded_texts import CostedTexts, PlainTexts
from penstock.handlers.contract import Context


def test_the_ratios_are_those_of_the_same_turn() -> None:
    found = figures(
        {
            "loop": [TextTurn(100.0, 0.01), TextTurn(50.0, 0.02)],
            "cost": [TextTurn(90.0, 0.0125, idle=0.1, waits=0.02), TextTurn(45.0, 0.025, idle=0.2)],
            "plain": [TextTurn(60.0, 0.02)] * 2,
        }
    )
    assert found["own_handler_cost_ratio"] == pytest.approx(0.9)
    assert found["own_handler_cost_cpu_ratio"] == pytest.approx(0.8)
    assert found["own_handler_plain_ratio"] == pytest.approx(0.9)
    assert found["loop_items_per_s"] == 75.0
    assert (found["own_handler_cost_idle"], found["own_handler_cost_waits"]) == (0.15, 0.01)


def test_padding_does_not_change_what_the_stand_in_answers() -> None:
    handler: Any = CostedTexts()
    handler.initialize(Context("m"))
    short, long = handler.preprocess(["the river", "a turbine turned slowly and power reached the villages"])
    assert handler.inference([short, long])[0] == pytest.approx(handler.inference([short])[0], abs=1e-3)
    assert handler.cost(short) == 2
    assert PlainTexts.cost is not CostedTexts.cost


def test_the_loop_runs_every_text() -> None:
    turn = SortedLoop(["the river", "a gate", "water"]).turn()
    assert turn.per_s > 0
    assert turn.cpu_s > 0


def test_a_thread_that_works_has_run_and_one_that_sleeps_has_not() -> None:
    before = Scheduled.read(os.getpid())
    while Scheduled.read(os.getpid()).ran_s < before.ran_s + 0.01:
        pass
    assert Scheduled.read(os.getpid()).waited_s >= before.waited_s
