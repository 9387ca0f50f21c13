"""The page of sizes: what it computes, and that it says what the committed figures give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scale.sizing import PAGE, JobCost, SizingPlan, cost_table, read_cost, sizing, sizing_table

COST = JobCost(
    gateway_us=100,
    store_us=60,
    worker_us=30,
    kept_bytes=1_024,
    store_in_bytes=700,
    store_out_bytes=300,
    store_spread=1.8,
)
PLAN = SizingPlan(busy=0.6, kept_s=64, replicas=1, vcpu_hour=0.1, gib_hour=0.0)


def test_parts_are_whole_processes_that_are_busy_for_the_planned_share() -> None:
    found = sizing(10_000, COST, PLAN)
    # 1 s of gateway CPU per second at 60 % of a core each; 0.6 s of the store's, which is one primary.
    assert (found.primaries, found.gateways, found.workers) == (1, 2, 1)
    assert found.store_gib == pytest.approx(10_000 * 64 / 2**20 * 2)
    assert found.network_mb_s == pytest.approx(10_000 * (2 * 700 + 300) / 1e6)
    assert found.dollars_month == pytest.approx((2 + 2 + 1) * 0.1 * 730)


def test_more_primaries_carry_less_than_their_number() -> None:
    assert sizing(100_000, COST, PLAN).primaries == 12
    assert sizing(100_000, replace(COST, store_spread=2.0), PLAN).primaries == 10


def test_the_page_says_what_the_committed_figures_give() -> None:
    page = PAGE.read_text()
    assert cost_table(read_cost()) in page
    assert sizing_table(read_cost(), SizingPlan()) in page
