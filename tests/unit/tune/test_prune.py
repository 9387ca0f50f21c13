from __future__ import annotations

from dataclasses import replace

from penstock.tune.prune import MemoryBudget, ruled_out
from penstock.tune.result import BatchTime, Choice, Drift, EngineSettings, Goal, Measured

_GOAL = Goal(limit_s=0.1, tolerance=0.01)
_FAST, _SLOW = EngineSettings(precision="bf16"), EngineSettings()
_POINTS = [Choice(engine, size) for engine in (_FAST, _SLOW) for size in (1, 8)]


def measured(engine: EngineSettings, base_s: float, item_s: float = 0.001) -> Measured:
    return Measured(engine, times=tuple(BatchTime(size, base_s + size * item_s) for size in (1, 8)), memory_bytes=1 << 30)


def why(fast: Measured, slow: Measured, room: MemoryBudget | None = None) -> dict[Choice, str]:
    return ruled_out(_POINTS, {(_FAST, 1): fast, (_SLOW, 1): slow}, _GOAL, room or MemoryBudget())


def test_an_engine_too_slow_for_one_item_is_out_with_its_time() -> None:
    found = why(measured(_FAST, 0.01), measured(_SLOW, 0.2))
    assert found[Choice(_SLOW, 1)] == "one item alone takes 201 ms, the limit is 100 ms"


def test_a_full_batch_beyond_the_limit_is_out_and_a_smaller_one_stays() -> None:
    fast = replace(measured(_FAST, 0.04), times=(BatchTime(1, 0.05), BatchTime(8, 0.12)))
    found = why(fast, measured(_SLOW, 0.2))
    assert "a full batch of 8 alone takes 120 ms" in found[Choice(_FAST, 8)]
    assert Choice(_FAST, 1) not in found


def test_an_engine_that_is_slower_at_every_size_is_out_and_named_against_its_rival() -> None:
    found = why(measured(_FAST, 0.01), measured(_SLOW, 0.02))
    assert found == {point: found[Choice(_SLOW, 1)] for point in _POINTS if point.engine == _SLOW}
    assert "slower than cpu bf16 at every batch size" in found[Choice(_SLOW, 1)]


def test_engines_that_are_each_better_at_one_size_both_stay() -> None:
    assert why(measured(_FAST, 0.010, 0.002), measured(_SLOW, 0.015, 0.001)) == {}


def test_an_engine_whose_answers_drift_is_out_and_beats_nobody() -> None:
    drifting = replace(measured(_FAST, 0.01), drift=Drift("cpu fp32", absolute=0.3, relative=0.03, compared=10))
    found = why(drifting, measured(_SLOW, 0.02))
    assert "drift from those of cpu fp32 by 0.03" in found[Choice(_FAST, 1)]
    assert Choice(_SLOW, 1) not in found


def test_labels_that_differ_count_by_their_share() -> None:
    few = replace(measured(_FAST, 0.01), drift=Drift("cpu fp32", differing=1, compared=1_000))
    many = replace(few, drift=Drift("cpu fp32", differing=20, compared=1_000))
    assert Choice(_FAST, 1) not in why(few, measured(_SLOW, 0.02))
    assert "20 of 1000 answers" in why(many, measured(_SLOW, 0.02))[Choice(_FAST, 1)]


def test_children_that_do_not_fit_are_out_with_what_they_take() -> None:
    found = why(measured(_FAST, 0.01), measured(_SLOW, 0.02), MemoryBudget(memory_bytes=1 << 30))
    assert found[Choice(_FAST, 1)] == "1 child takes 1 GiB of memory, 1 GiB is free"


def test_what_could_not_be_run_is_out_with_what_it_said() -> None:
    found = why(Measured(_FAST, error="no CUDA here"), measured(_SLOW, 0.02))
    assert found[Choice(_FAST, 8)] == "it does not run: no CUDA here"
