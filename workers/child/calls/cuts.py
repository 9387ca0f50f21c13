"""The cheapest way to cut items in the order of their cost into calls, by the known times of calls. Pure; seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from penstock.workers.child.calls.times import Curve, Measure

# If two ways differ by less than this factor, the one with fewer calls is taken.
NEARLY = 1.05
# A call costs this much besides the model's own time.
CALL_S = 0.000_1
Cut = tuple[int, int]


class Bounds(NamedTuple):
    """The most items of one call, and the most cost, padding included."""

    items: int
    cost: float = inf


class Cutter:
    """One batch, whose `costs` are in ascending order. A cut is the first of the items of a call, and the one after its last.

    The best way to cut the first n items is the best way to cut fewer of them, and one call of the rest. `ladder`: the numbers
    of items that are considered, in ascending order.
    """

    def __init__(self, costs: Sequence[float], curve: Curve, measure: Measure, bounds: Bounds, ladder: Sequence[int]) -> None:
        self.count = len(costs)
        self._costs = costs
        self._measure = measure
        self._expect = curve.expect
        self._bounds = bounds
        self._ladder = ladder
        self._sums = [0.0, *accumulate(costs)] if measure is Measure.SUM else []
        # Items that are alike can be cut evenly: a fraction of the work.
        self._is_even = measure is Measure.ITEMS or costs[0] == costs[-1]
        self._largest = max(costs)
        self._known: dict[float, float] = {}
        self._before: list[float] = []
        self._cut_before: list[int] = []
        self._after: list[float] = []
        self._cut_after: list[int] = []

    def size(self, first: int, last: int) -> float:
        """The size of a call of these items, by the measure in use."""
        if self._measure is Measure.ITEMS:
            return last - first
        return self.padded(first, last) if self._measure is Measure.PADDED else self._sums[last] - self._sums[first]

    def padded(self, first: int, last: int) -> float:
        return (last - first) * (self._largest if self._is_even else self._costs[last - 1])

    def fits(self, first: int, last: int) -> bool:
        if last - first > self._bounds.items:
            return False
        return last - first == 1 or self._bounds.cost == inf or self.padded(first, last) <= self._bounds.cost

    def padding(self, cuts: Sequence[Cut]) -> float:
        """The share of the calls that would be padding."""
        padded = sum(self.padded(first, last) for first, last in cuts)
        return 1.0 - sum(self._costs) / padded if padded else 0.0

    def cheapest(self) -> tuple[list[Cut], float]:
        """The cuts with the least expected time, and that time."""
        if self._is_even:
            return self._evenly(0, self.count)
        self._look_back()
        whole_s = self._seconds(0, self.count)
        if whole_s <= self._before[-1] * NEARLY:
            return [(0, self.count)], whole_s
        return self._cuts_before(self.count), self._before[-1]

    def around(self, first: int, last: int) -> tuple[list[Cut], list[Cut]]:
        """The cheapest cuts of the items before this call, and of those after it."""
        if self._is_even:
            return self._evenly(0, first)[0], self._evenly(last, self.count)[0]
        self._look_ahead()
        return self._cuts_before(first), self._cuts_after(last)

    def with_call(self, first: int, last: int) -> float:
        """The expected seconds if this call is one of the cuts."""
        if self._is_even:
            others_s = self._evenly(0, first)[1] + self._evenly(last, self.count)[1]
        else:
            self._look_ahead()
            others_s = self._before[first] + self._after[last]
        return others_s + self._seconds(first, last)

    def _seconds(self, first: int, last: int) -> float:
        if not self.fits(first, last):
            return inf
        size = self.size(first, last)
        known = self._known.get(size)
        if known is None:
            known = self._known[size] = self._expect(size) + CALL_S
        return known

    def _evenly(self, first: int, last: int) -> tuple[list[Cut], float]:
        """Calls of one number of items, and one of the rest: the largest number that is nearly the cheapest."""
        count = last - first
        if not count:
            return [], 0.0
        ways = {items: self._even_seconds(first, count, items) for items in (*self._ladder, count) if items <= count}
        least = min(ways.values())
        items = max(items for items, seconds in ways.items() if seconds <= least * NEARLY)
        return [(start, min(start + items, last)) for start in range(first, last, items)], ways[items]

    def _even_seconds(self, first: int, count: int, items: int) -> float:
        rest = count % items
        return count // items * self._seconds(first, first + items) + (self._seconds(first, first + rest) if rest else 0.0)

    def _look_back(self) -> None:
        """The cheapest way for the first 0, 1, 2 ... items, and the size of its last call."""
        best, cut = [0.0] + [inf] * self.count, [0] * (self.count + 1)
        for end in range(1, self.count + 1):
            for items in self._numbers(end):
                seconds = best[end - items] + self._seconds(end - items, end)
                if seconds < best[end]:
                    best[end], cut[end] = seconds, items
        self._before, self._cut_before = best, cut

    def _look_ahead(self) -> None:
        """The same for the items from each place on, and the size of the first call."""
        if self._after:
            return
        best, cut = [inf] * self.count + [0.0], [0] * (self.count + 1)
        for start in range(self.count - 1, -1, -1):
            for items in self._numbers(self.count - start):
                seconds = best[start + items] + self._seconds(start, start + items)
                if seconds < best[start]:
                    best[start], cut[start] = seconds, items
        self._after, self._cut_after = best, cut

    def _numbers(self, most: int) -> Sequence[int]:
        """The numbers of items that a call of at most `most` may have; `most` itself, where it is one of no ladder's."""
        fitting = self._ladder[: bisect_right(self._ladder, most)]
        return fitting if fitting else (most,)

    def _cuts_before(self, end: int) -> list[Cut]:
        cuts: list[Cut] = []
        while end:
            cuts.append((end - self._cut_before[end], end))
            end -= self._cut_before[end]
        return cuts[::-1]

    def _cuts_after(self, start: int) -> list[Cut]:
        cuts: list[Cut] = []
        while start < self.count:
            cuts.append((start, start + self._cut_after[start]))
            start += self._cut_after[start]
        return cuts
