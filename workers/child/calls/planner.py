"""How a batch is cut into calls of the model: items of like cost together, in calls of the size that is cheapest (D64). Pure.

What a call costs is learned from the calls that run. Every so often one call of a batch has a size about which little is known,
at a price that stays below `_PRICE` of the time spent: so the cheapest size is learned and need not be declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf

from penstock.handlers.calls import group_by_cost
from penstock.model_spec import LearnedCalls
from penstock.workers.child.calls.cuts import CALL_S, NEARLY, Bounds, Cut, Cutter
from penstock.workers.child.calls.times import CallTimes, Measure, call_size, step_of

# The share of the model's time that tried sizes may cost, and the batches between two trials.
_PRICE = 0.01
_TRY_EVERY = 4
# The price of this many batches may be spent in advance, so that a new model is known soon.
_CREDIT = 64
# A size is known after this many runs. A size that is not used is tried again after a pause, which doubles each time.
_KNOWN = 3
_AGAIN_FIRST, _AGAIN_MOST = 128, 8_192
# A size that makes its batch this much more expensive is dear: one run is enough to know it.
_DEAR = 0.1
# More than one call's worth is worth having where this share of the calls is padding, up to this many times the largest call,
# and if the whole batch is expected to take no longer than this: the first item waits for the last one's answer.
_PADDED = 0.05
_GROUPS = 4
_GROUPED_S = 1.0
# A batch costs this much CPU time beside the model's own, whatever its size: claim, settlement, frames, pushes. A batch of
# fewer items than a call may have must run so long that this is a small share of it (D69).
_BATCH_S = 0.001
_BATCH_SHARE = 0.02
# A wish for few items is dropped for one batch in this many, so that larger calls can be tried.
_WISH_LESS_EVERY = 64
# After memory ran out, larger calls are tried again after this many batches.
_GROW_EVERY = 256
# One batch in this many reports what was learned.
_NEWS_EVERY = 16


@dataclass(frozen=True, slots=True)
class CallPlan:
    """`calls`: the places of the items of each call. `expected_s`: what the cheapest known plan takes. `tried`: the call whose
    size is tried, if any."""

    calls: list[list[int]]
    expected_s: float = 0.0
    tried: int | None = None


class Planner:
    """Cuts batches and learns from them. `sizes`: the numbers of items that a call may have if the model takes only some.

    `one_by_one`: the model takes items one after the other, so that no batch is cheaper than its items are. `batch_items`: the
    most that a batch has, if not what a call may have.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        declared: bool = False,
        sizes: Sequence[int] = (),
        one_by_one: bool = False,
        batch_items: int = 0,
    ) -> None:
        self._one_by_one = one_by_one
        self._batch_items = batch_items or bounds.items
        self.times = CallTimes(declared=declared)
        self._bounds = bounds
        # Below the handler's own bound while memory is short.
        self._most_cost = bounds.cost
        self._ladder = _ladder(bounds.items, sizes)
        self._tries = _Tries()
        self._spent_s = 0.0
        self._excess_s = 0.0
        self._batches = 0
        # Shares of padding, as smoothed over batches: if a batch were one call, and as it was cut.
        self._unlike = self._padding = 0.0
        self._item_s = self._call_items = 0.0

    # Events.

    def on_ran(self, count: int, costs: Sequence[float], seconds: float) -> None:
        """A call of `count` items with these costs (none: they are unknown) took `seconds`."""
        if seconds <= 0.0 or not count:
            return
        if not costs:
            self.times.observe_items(count, seconds)
            self._tries.on_ran(step_of(count))
            return
        size = call_size(costs)
        self.times.observe(size, seconds)
        self._tries.on_ran(step_of(size.by(self.times.measure)))

    def on_memory_short(self, costs: Sequence[float], largest_ok: int) -> None:
        """Of a call of items with these costs, only parts of `largest_ok` items fitted into memory."""
        self._bounds = self._bounds._replace(cost=min(self._bounds.cost, max(1, largest_ok) * max(costs)))

    def on_batch(self, plan: CallPlan, seconds: float) -> None:
        """All calls of the plan together took `seconds`."""
        self._batches += 1
        self._spent_s += seconds
        each_s = seconds / max(1, sum(map(len, plan.calls)))
        self._item_s = each_s if self._batches == 1 else self._item_s + 0.1 * (each_s - self._item_s)
        per_call = sum(map(len, plan.calls)) / max(1, len(plan.calls))
        self._call_items = per_call if self._batches == 1 else self._call_items + 0.1 * (per_call - self._call_items)
        if self._batches % _GROW_EVERY == 0:
            self._bounds = self._bounds._replace(cost=min(self._most_cost, 1.5 * self._bounds.cost))
        if plan.tried is not None:
            self._excess_s += max(0.0, seconds - plan.expected_s)

    # Decisions.

    def plan(self, count: int, costs: Sequence[float], *, may_try: bool = True) -> CallPlan:
        """The calls of a batch of `count` items with these costs (none: they are unknown), in the order in which to run them.

        `may_try`: whether the batch may take longer than the cheapest known plan, for the sake of learning.
        """
        measure = self.times.measure if costs else Measure.ITEMS
        if count < 2 or not self._batches:
            return CallPlan(self.within_bounds(count, costs))
        order = range(count) if measure is Measure.ITEMS else sorted(range(count), key=costs.__getitem__)
        ordered = [costs[place] for place in order] if costs else [1.0] * count
        cutter = Cutter(ordered, self.times.curves[measure], measure, self._bounds, self._ladder)
        cuts, expected_s = cutter.cheapest()
        if measure is not Measure.ITEMS:
            self._note_padding(cutter, cuts)
        tried = self._trial(cutter, expected_s) if may_try and self._batches % _TRY_EVERY == 0 else None
        if tried is None:
            return CallPlan(_places(order, cuts), expected_s)
        before, after = cutter.around(*tried)
        return CallPlan(_places(order, [*before, tried, *after]), expected_s, len(before))

    def within_bounds(self, count: int, costs: Sequence[float]) -> list[list[int]]:
        """As few calls as the bounds allow."""
        bounds = self._bounds
        if count <= bounds.items and (not costs or bounds.cost == inf or count * max(costs) <= bounds.cost):
            return [list(range(count))] if count else []
        return group_by_cost(costs or [0.0] * count, most_items=bounds.items, most_cost=bounds.cost)

    def _trial(self, cutter: Cutter, expected_s: float) -> tuple[int, int] | None:
        """The call to try; None if there is nothing to learn, or it would cost too much."""
        credit_s = _CREDIT * self._spent_s / max(1, self._batches)
        left_s = _PRICE * (self._spent_s + credit_s) - self._excess_s
        if left_s <= 0.0:
            return None
        for first, last in _candidates(self._ladder, cutter.count):
            step = step_of(cutter.size(first, last))
            if not cutter.fits(first, last) or not self._tries.is_due(step):
                continue
            price_s = cutter.with_call(first, last) - expected_s
            if not self._tries.has_run(step):
                # It may also turn out to be cheaper; its real cost is counted afterwards.
                price_s /= 2
            if price_s <= left_s and (price_s <= _DEAR * expected_s or self._tries.is_due(step, dear=True)):
                self._tries.on_try(step)
                return first, last
        return None

    # Requests.

    def _note_padding(self, cutter: Cutter, cuts: Sequence[Cut]) -> None:
        self._unlike += 0.2 * (cutter.padding([(0, cutter.count)]) - self._unlike)
        self._padding += 0.2 * (cutter.padding(cuts) - self._padding)

    def wish(self) -> int:
        """How many items the next batch should have at most; 0: as many as one call may have.

        Fewer where small calls are cheaper and nothing is gained by choosing among many items; more where like items are rare.
        """
        if not self._batches:
            return 0
        if self._one_by_one:
            few = self._few_of(1, self._item_s)
            return few if few < self._batch_items else 0
        if self.times.measure is Measure.ITEMS or self._unlike < _PADDED:
            few = self._few()
            return 0 if few >= self._bounds.items or self._batches % _WISH_LESS_EVERY == 0 else few
        if self.times.measure is Measure.SUM or self._padding < _PADDED:
            return 0
        return min(int(_GROUPED_S / self._item_s), _GROUPS * self._bounds.items) if self._item_s else 0

    def _few(self) -> int:
        """The fewest items that make cheap calls of a batch that is itself cheap to claim and settle.

        The child cuts large batches, too. Small ones only spare the first items the wait for the last ones.
        """
        best = self.best_items()
        return self._few_of(best, self.times.curves[Measure.ITEMS].expect(best))

    def _few_of(self, items: int, call_s: float) -> int:
        """The items of enough calls to make up for a batch's own cost; each call has `items` and takes `call_s` seconds."""
        return items * ceil(_BATCH_S / _BATCH_SHARE / call_s) if call_s else self._bounds.items

    def news(self) -> LearnedCalls | None:
        """What is known of calls; None if it was reported recently, or nothing is known."""
        if self._batches % _NEWS_EVERY or not self.times.curve.table():
            return None
        table = tuple((size, round(seconds, 6)) for size, seconds in self.times.curve.table())
        return LearnedCalls(self.times.measure.value, table, round(self._call_items, 1))

    def best_items(self) -> int:
        """The largest number of items whose cost per item is nearly the least; the most that a call may have while unknown."""
        curve = self.times.curves[Measure.ITEMS]
        known = {self._bounds.items, *(items for items in self._ladder if curve.runs(items) >= _KNOWN)}
        each = {items: (curve.expect(items) + CALL_S) / items for items in known}
        least = min(each.values())
        return max(items for items, seconds in each.items() if seconds <= least * NEARLY)


class _Tries:
    """The known sizes, and when to try the others again. Time is counted in calls."""

    def __init__(self) -> None:
        self._calls = 0
        self._runs: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._due: dict[int, int] = {}
        self._pause: dict[int, int] = {}

    def on_ran(self, step: int) -> None:
        self._calls += 1
        self._runs[step] = self._runs.get(step, 0) + 1
        self._seen[step] = self._calls
        if self._runs[step] >= _KNOWN:
            self._due[step] = self._calls + self._pause.get(step, _AGAIN_FIRST)

    def on_try(self, step: int) -> None:
        if self._runs.get(step, 0) >= _KNOWN:
            self._pause[step] = min(_AGAIN_MOST, 2 * self._pause.get(step, _AGAIN_FIRST))

    def has_run(self, step: int) -> bool:
        return step in self._runs

    def is_due(self, step: int, *, dear: bool = False) -> bool:
        """Whether to try it. `dear`: it seems to cost so much that one run is enough to know it."""
        due = self._seen.get(step, -_AGAIN_FIRST) + _AGAIN_FIRST if dear else 0
        return self._calls >= max(due, self._due.get(step, 0))


def _ladder(most: int, sizes: Sequence[int]) -> tuple[int, ...]:
    wanted = sizes or [1 << power for power in range(most.bit_length())]
    return tuple(sorted({*(size for size in wanted if size < most), most}))


def _candidates(ladder: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Calls of each size, among the costliest items, the middle ones and the cheapest."""
    for items in reversed(ladder):
        if items <= count:
            for first in dict.fromkeys((count - items, (count - items) // 2, 0)):
                yield first, first + items


def _places(order: Sequence[int], cuts: Sequence[tuple[int, int]]) -> list[list[int]]:
    return [list(order[first:last]) for first, last in cuts]
