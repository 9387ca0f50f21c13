from __future__ import annotations

from collections.abc import Callable

from penstock.workers.child.shards.sizes import ONLINE_RECENT_S, ShardSizes

Seconds = Callable[[int], float]


def run(sizes: ShardSizes, model: Seconds, *, calls: int, cost: int = 10, now: float = 0.0) -> list[int]:
    """Return the sizes that are chosen in `calls` calls of a model that takes `model(size)` seconds."""
    chosen = []
    for _ in range(calls):
        chosen.append(size := sizes.choose(cost, now))
        sizes.on_ran(size, cost, whole_s=model(size), device_s=model(size))
    return chosen


def accelerator(size: int) -> float:
    return 0.005 + 0.0005 * size


def cached(size: int) -> float:
    """A model whose cost per row is lowest at size 4."""
    return size * {1: 4.0, 2: 2.0, 4: 1.0, 8: 1.5, 16: 2.0, 32: 3.0}[size] / 1_000


def test_the_first_call_is_as_large_as_it_may_be() -> None:
    assert ShardSizes(32).choose(10, 0.0) == 32
    assert ShardSizes(24).choose(10, 0.0) == 24


def test_where_larger_is_cheaper_the_largest_size_stays() -> None:
    chosen = run(ShardSizes(64), accelerator, calls=400)
    assert set(chosen) == {64, 32}
    assert chosen.count(32) <= 6


def test_the_cheapest_size_per_row_is_found() -> None:
    assert set(run(ShardSizes(32), cached, calls=60)[-20:]) == {4}


def test_trying_other_sizes_costs_about_one_percent() -> None:
    chosen = run(ShardSizes(32), cached, calls=3_000)[100:]
    spent, rows = sum(map(cached, chosen)), sum(chosen)
    assert spent / rows <= 1.01 * cached(4) / 4


def test_equal_costs_leave_the_larger_size() -> None:
    assert run(ShardSizes(32), lambda size: size / 1_000, calls=200)[-1] == 32


def test_rows_of_unlike_cost_are_learned_apart() -> None:
    sizes = ShardSizes(32)
    run(sizes, accelerator, calls=60, cost=4)
    run(sizes, cached, calls=60, cost=4_000)
    assert sizes.choose(4, 0.0) == 32
    assert sizes.choose(4_000, 0.0) == 4


def test_beside_online_jobs_a_micro_batch_takes_no_longer_than_one_of_their_batches() -> None:
    sizes = ShardSizes(64)
    run(sizes, accelerator, calls=20)
    sizes.on_online_ran(0.010, at=100.0)
    assert set(run(sizes, accelerator, calls=30, now=100.5)) == {8}
    assert sizes.choose(10, 100.0 + ONLINE_RECENT_S) == 64


def test_one_row_runs_however_short_the_slice_is() -> None:
    sizes = ShardSizes(64, slice_s=0.000001)
    sizes.on_online_ran(1.0, at=0.0)
    assert sizes.choose(10, 0.0) == 1


def test_a_slice_that_is_set_counts_instead() -> None:
    sizes = ShardSizes(64, warm={size: accelerator(size) for size in (1, 2, 4, 8, 16, 32, 64)}, slice_s=0.014)
    sizes.on_online_ran(1.0, at=0.0)
    assert sizes.choose(10, 0.0) == 16


def test_the_shape_of_the_warm_up_leads_to_sizes_that_were_never_measured() -> None:
    # If times were scaled by rows alone, one row of 5.5 ms would keep a slice of 8 ms at one row for ever.
    sizes = ShardSizes(64, warm={size: accelerator(size) for size in (1, 2, 4, 8, 16, 32, 64)})
    sizes.on_ran(1, 10, whole_s=0.0055, device_s=0.0055)
    sizes.on_online_ran(0.008, at=0.0)
    assert sizes.choose(10, 0.0) == 4


def test_what_does_not_fit_into_memory_is_not_tried_again_soon() -> None:
    sizes = ShardSizes(32)
    sizes.cap(11)
    chosen = run(sizes, accelerator, calls=1_200)
    assert set(chosen[:200]) == {8}
    assert chosen[-1] >= 16


def test_not_even_one_row_in_memory_still_runs_rows_one_by_one() -> None:
    sizes = ShardSizes(32)
    sizes.cap(0)
    assert sizes.choose(10, 0.0) == 1


def test_a_long_micro_batch_is_cut_where_that_costs_next_to_nothing() -> None:
    """Regression: without traffic a run took 32 long texts at once, and the next online calls waited for a second of work."""
    assert run(ShardSizes(32), lambda size: 0.001 + 0.030 * size, calls=200)[-1] == 1
    assert run(ShardSizes(32), lambda size: 0.200 + 0.001 * size, calls=200)[-1] == 32


def test_halvings_that_cost_little_each_do_not_add_up() -> None:
    """Each halving costs 4 % more per row. Regression: each was compared with the size before, so all were accepted."""
    costs = {size: 0.01 * 1.04**halvings for halvings, size in enumerate((64, 32, 16, 8, 4, 2, 1))}
    sizes = ShardSizes(64)
    # Rows of a sixteenth of the cost came before, so these rows begin with a short call, far below the cheapest size.
    run(sizes, lambda size: size / 1_600, calls=20, cost=10)
    chosen = run(sizes, lambda size: size * costs[size], calls=5_000, cost=160)
    assert chosen[0] < 16
    assert {size for size in set(chosen) if chosen.count(size) > 1_000} == {32}


def test_rows_never_seen_begin_with_a_size_that_should_not_be_long() -> None:
    sizes = ShardSizes(32)
    run(sizes, lambda size: 0.001 * size, calls=20, cost=15)
    # This row costs 64 times as much as the rows before.
    assert sizes.choose(15 * 64, 0.0) == 1
