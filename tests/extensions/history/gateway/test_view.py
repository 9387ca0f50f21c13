"""A history as the series of GET /v1/history."""

from __future__ import annotations

from penstock.extensions.history.gateway.view import history_of, view
from penstock.extensions.history.gateway.window import HistoryRange, window_of
from penstock.extensions.history.store import (
    ACCEPTED,
    BUSY,
    COVERED,
    DEVICE_BUSY,
    DEVICE_TIME,
    ITEMS,
    REASONS,
    SLOT_TIME,
    WAITING,
    HistoryStep,
)

LAST = window_of(HistoryRange(300), 10, 1_009.0)
STEP = HistoryStep(
    1_000,
    {
        COVERED: 8_000,
        ACCEPTED: 16,
        ITEMS: 6,
        REASONS["idle"]: 1,
        REASONS["full"]: 2,
        REASONS["bulk"]: 1,
        BUSY: 50,
        SLOT_TIME: 200,
    },
    {WAITING: 3},
    {40: 1},
    {},
)


def test_a_step_is_told_in_rates_shares_and_levels() -> None:
    shown = view(history_of({1_000: STEP}, model="m", window=LAST))
    assert shown["at"][-1] == 1_000
    assert len(shown["at"]) == 30
    assert (shown["accepted_per_s"][-1], shown["waiting"][-1], shown["batch_size"][-1]) == (2.0, 3.0, 2.0)
    assert (shown["busy_share"][-1], shown["releases"]["full"][-1]) == (0.25, 0.5)
    assert shown["total_s"]["p99"][-1] == 0.939
    assert shown["queue_s"]["p99"][-1] is None


def test_gpus_are_busy_by_their_own_measure_and_without_any_nothing_is_known() -> None:
    on_gpus = HistoryStep(1_000, {DEVICE_BUSY: 300, DEVICE_TIME: 400, BUSY: 50, SLOT_TIME: 200})
    shown = [view(history_of({1_000: step}, model="m", window=LAST)) for step in (on_gpus, STEP)]
    assert [found["device_busy_share"][-1] for found in shown] == [0.75, None]
    assert [found["busy_share"][-1] for found in shown] == [0.25, 0.25]


def test_where_nobody_looked_nothing_is_known() -> None:
    shown = view(history_of({1_000: STEP}, model="m", window=LAST))
    assert shown["accepted_per_s"][:-1] == [None] * 29


def test_what_does_not_add_up_over_models_is_not_told_of_all() -> None:
    shown = view(history_of({1_000: STEP}, model="", window=LAST))
    assert shown["model"] is None
    assert not shown.keys() & {"workers", "memory_bytes", "away"}


def test_models_whose_store_is_away_are_named() -> None:
    assert view(history_of({}, model="", window=LAST, away=["far"]))["away"] == ["far"]
