from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.child.calls.cuts import Bounds
from penstock.workers.child.calls.planner import CallPlan, Planner
from penstock.workers.child.calls.times import Measure

Model = Callable[[Sequence[float]], float]


def padding(costs: Sequence[float]) -> float:
    """A model that pads to the longest: 2 ms, and 0.12 ms per token, padding included."""
    return 0.002 + 0.000_12 * len(costs) * max(costs)


def accelerator(costs: Sequence[float]) -> float:
    """5 ms, and 0.5 ms per item, whatever the items are."""
    return 0.005 + 0.000_5 * len(costs)


def adding(costs: Sequence[float]) -> float:
    """A model that works item by item: 2 ms, and 0.12 ms per token."""
    return 0.002 + 0.000_12 * sum(costs)


def crowded(costs: Sequence[float]) -> float:
    """Items that are all alike and suffer from each other beyond four in a call, as where caches are small."""
    return 0.000_5 + 0.001 * len(costs) * (1 + 0.06 * max(0, len(costs) - 4))


def mixed(count: int, seed: int = 0) -> list[float]:
    """Lengths like those of titles, sentences and paragraphs."""
    draw = random.Random(seed)
    return [min(200.0, max(4.0, round(draw.lognormvariate(2.9, 0.9)))) for _ in range(count)]


class Loop:
    """Batches of `limit` items, one after the other; the first ones are smaller, as a slot asks for them."""

    def __init__(self, model: Model, *, declared: bool, limit: int = 32, noise: float = 0.03) -> None:
        self.planner = Planner(Bounds(limit), declared=declared)
        self._model, self._limit, self._noise = model, limit, noise
        self._draw = random.Random(7)
        self._grown = 1

    def seconds(self, costs: Sequence[float]) -> float:
        spent, at = 0.0, 0
        while at < len(costs):
            wish = self.planner.wish()
            size = min(self._grown, self._limit, wish or self._limit)
            self._grown = min(self._limit, 2 * self._grown)
            spent += self._batch(costs[at : at + size])
            at += size
        return spent

    def _batch(self, costs: Sequence[float]) -> float:
        plan = self.planner.plan(len(costs), costs)
        whole = 0.0
        for places in plan.calls:
            call = [costs[place] for place in places]
            seconds = self._model(call) * max(0.5, self._draw.gauss(1.0, self._noise))
            self.planner.on_ran(len(call), call, seconds)
            whole += seconds
        self.planner.on_batch(plan, whole)
        return whole


def in_calls_of(size: int, costs: Sequence[float], model: Model) -> float:
    return sum(model(costs[at : at + size]) for at in range(0, len(costs), size))


def test_a_model_that_pads_gets_texts_of_like_length_together_whether_or_not_it_says_what_they_cost() -> None:
    costs = mixed(6_400)
    sorted_loop_s = in_calls_of(4, sorted(costs), padding)
    for declared, share in ((True, 0.85), (False, 0.75)):
        loop = Loop(padding, declared=declared)
        assert sorted_loop_s / loop.seconds(costs) > share
        assert loop.planner.times.measure is Measure.PADDED


def test_an_accelerator_runs_its_largest_calls_and_loses_little_to_trials() -> None:
    costs = mixed(12_800)
    for declared in (False, True):
        loop = Loop(accelerator, declared=declared)
        loop.seconds(costs)
        assert loop.planner.times.measure is Measure.ITEMS
        assert loop.planner.wish() == 0
        assert in_calls_of(32, costs, accelerator) / loop.seconds(costs) > 0.98


def test_a_model_that_works_item_by_item_is_not_cut() -> None:
    loop = Loop(adding, declared=True)
    loop.seconds(mixed(6_400))
    costs = mixed(6_400, seed=1)
    assert loop.planner.times.measure is Measure.SUM
    assert in_calls_of(32, costs, adding) / loop.seconds(costs) > 0.98


def wishes_of(model: Model, *, declared: bool) -> set[int]:
    """What a planner wishes for over some batches, when it knows the model. Now and then it wishes for a full batch (0)."""
    loop = Loop(model, declared=declared)
    loop.seconds([100.0] * 3_200)
    wishes = set()
    for _ in range(70):
        loop.seconds([100.0] * 4)
        wishes.add(loop.planner.wish())
    return wishes


def test_where_small_calls_are_cheapest_the_next_batch_is_wished_to_be_one_of_them() -> None:
    for declared in (False, True):
        # A batch of one call takes 54 ms.
        assert wishes_of(lambda costs: 12 * crowded(costs), declared=declared) == {0, 4}


def test_where_small_calls_are_quick_several_of_them_share_a_batch_because_a_batch_costs_something_too() -> None:
    for declared in (False, True):
        assert wishes_of(lambda costs: 4 * crowded(costs), declared=declared) == {0, 12}
        assert wishes_of(crowded, declared=declared) == {0}


def interrupted(item_s: float) -> Model:
    """Every item takes as long as any other, but other processes take time from long calls, and none from short ones."""
    return lambda costs: item_s * len(costs) * (1.0 if len(costs) < 4 else 1.2)


def test_a_model_whose_items_take_as_long_in_calls_of_any_size_is_not_run_item_by_item() -> None:
    # Regression: each job paid for a claim and a settlement of its own.
    assert wishes_of(interrupted(0.001), declared=False) == {0}
    assert all(10 <= wish < 16 for wish in wishes_of(interrupted(0.005), declared=False) - {0})


def test_what_is_tried_costs_less_than_two_percent() -> None:
    costs = mixed(12_800)
    for model, best in ((accelerator, in_calls_of(32, costs, accelerator)), (adding, in_calls_of(32, costs, adding))):
        loop = Loop(model, declared=False, noise=0.0)
        loop.seconds(mixed(640, seed=2))
        assert loop.seconds(costs) < 1.02 * best


def test_a_model_that_takes_one_item_at_a_time_gets_as_many_as_run_for_fifty_milliseconds() -> None:
    """All items of a batch are answered together: eight of a second each kept the first answer back for eight seconds."""

    def wish(item_s: float, *, one_by_one: bool = True) -> int:
        planner = Planner(Bounds(8), one_by_one=one_by_one)
        for count in (1, 2, 4, 8, 8, 8, 8):
            planner.on_ran(count, (), count * item_s)
            planner.on_batch(CallPlan([list(range(count))]), count * item_s)
        return planner.wish()

    assert (wish(1.0), wish(0.02), wish(0.001)) == (1, 3, 0)
    # Of another model nobody knows that a call of eight costs what eight calls of one do: the largest call is preferred.
    assert wish(1.0, one_by_one=False) == 0


def test_one_batch_is_enough_to_know_what_one_item_at_a_time_takes() -> None:
    planner = Planner(Bounds(8), one_by_one=True)
    planner.on_batch(CallPlan([[0]]), 1.0)
    assert planner.wish() == 1


def test_more_than_one_calls_worth_is_wished_for_where_like_items_are_rare_and_never_more_than_a_second_of_it() -> None:
    loop = Loop(padding, declared=True)
    loop.seconds(mixed(3_200))
    assert loop.planner.wish() > 32
    slow = Loop(lambda costs: 50 * padding(costs), declared=True)
    slow.seconds(mixed(3_200))
    assert slow.planner.wish() <= 32


def test_what_is_known_is_told_from_time_to_time() -> None:
    loop = Loop(padding, declared=True)
    told = []
    for _ in range(64):
        loop.seconds(mixed(32))
        told.append(loop.planner.news())
    known = [news for news in told if news is not None]
    assert 1 <= len(known) <= 8
    assert known[-1].measure == "padded cost"
    assert all(first[0] < second[0] for first, second in pairwise(known[-1].run_s))
    assert known[-1].items_per_call > 1


sizes = st.lists(st.one_of(st.just(7.0), st.just(0.0), st.floats(1e-9, 1e15)), min_size=0, max_size=70)


@given(batches=st.lists(sizes, max_size=12), declared=st.booleans(), limit=st.integers(1, 32), most=st.floats(1.0, 1e16))
def test_every_item_is_in_exactly_one_call_and_no_call_exceeds_its_bounds(
    batches: list[list[float]], declared: bool, limit: int, most: float
) -> None:
    planner = Planner(Bounds(limit, most), declared=declared)
    for number, costs in enumerate(batches):
        known = costs if number % 3 else []
        plan = planner.plan(len(costs), known)
        assert sorted(place for places in plan.calls for place in places) == list(range(len(costs)))
        for places in plan.calls:
            call = [known[place] for place in places] if known else []
            assert 0 < len(places) <= limit
            assert len(places) == 1 or not call or len(places) * max(call) <= most
            planner.on_ran(len(places), call, 0.01 + 0.001 * len(places))
        planner.on_batch(plan, 0.05)


def test_the_calls_of_a_batch_are_those_that_the_bounds_allow_until_something_is_known() -> None:
    planner = Planner(Bounds(4, 100.0), declared=True)
    assert planner.plan(5, [10.0, 90.0, 20.0, 30.0, 5.0]) == CallPlan([[4, 0, 2, 3][:3], [3], [1]])
