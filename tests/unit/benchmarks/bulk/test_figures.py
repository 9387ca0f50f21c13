"""Figures are ratios of means, targets hold in both directions, and a partial run keeps the figures of other parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.bulk.__main__ import TARGETS, store
from benchmarks.bulk.loop import run_all
from benchmarks.bulk.online_traffic import SharedSlot
from benchmarks.bulk.ratio import RunComparison, TurnRates
from penstock.handlers.load import load


def test_the_ratio_is_of_the_means_so_that_a_drift_over_the_turns_hits_both_alike() -> None:
    found = RunComparison((90.0, 110.0), TurnRates(32, [80.0, 100.0, 120.0]), TurnRates(8, [200.0]), None)
    assert found.ratio == pytest.approx(1.0)
    assert found.figures()["per_core_ratio"] == 0.5


def test_the_share_is_of_what_the_traffic_leaves_and_the_p99_of_all_rounds_together() -> None:
    found = SharedSlot([100.0, 100.0], [56.0], alone_s=[0.01] * 100, beside_s=[0.015] * 100, online_core=[0.25, 0.35])
    assert found.bulk_share == pytest.approx(0.8)
    assert found.p99_ratio == pytest.approx(1.5)


@pytest.mark.parametrize(("name", "good", "bad"), [("embed_ratio", 0.96, 0.94), ("rss_growth_ratio", 1.05, 1.2)])
def test_a_target_knows_its_direction(name: str, good: float, bad: float) -> None:
    assert TARGETS[name].met(good)
    assert not TARGETS[name].met(bad)


def test_measuring_one_part_keeps_the_figures_of_the_others(tmp_path: Path) -> None:
    out = tmp_path / "bulk.json"
    store(out, {"embed_ratio": 0.97}, {"embed": {"turns": [1.0]}})
    store(out, {"cheap_rows_per_s": 120_000.0}, {"cheap": {}})
    told: dict[str, Any] = msgspec.json.decode(out.read_bytes())
    assert told["embed_ratio"] == 0.97
    assert told["cheap_rows_per_s"] == 120_000.0
    assert set(told["details"]) == {"embed", "cheap"}


def test_the_loop_runs_every_row_once_the_short_ones_first(tmp_path: Path) -> None:
    source = tmp_path / "lengths.py"
    source.write_text(
        "from penstock import Handler\n\n\nclass Lengths(Handler):\n"
        "    def inference(self, batch: list[str]) -> list[int]:\n        return [len(text) for text in batch]\n"
    )
    assert run_all(load(f"{source}:Lengths", "lengths"), ["ccc", "a", "bb", "dddd", "e"], 2) == [1, 1, 2, 3, 4]
