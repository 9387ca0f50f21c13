"""Cuts a batch into shards: rows of similar cost together, all shards about equally long. Pure (D43)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from penstock.shard import by_cost, row_costs

# D43: docs/design/runs.md
# The part of a row's weight that depends on its length; the rest is the same for all rows. With one half, a shard takes at
# most twice the intended time, whether a model's time depends on the number of rows or on their length.
_BY_LENGTH = 0.5


class Cut(NamedTuple):
    """The places of one shard's rows in their batch. `weight`: the shard's cost in units of an average row."""

    places: Sequence[int]
    weight: float


def cut(inputs: Sequence[Any], rows: int, *, without: frozenset[int] = frozenset()) -> list[Cut]:
    """Every place of `inputs` except those in `without`, at most `rows` to a cut; costly and cheap cuts alternate."""
    costs = row_costs(inputs)
    order = by_cost(costs)
    if without:
        order = [place for place in order if place not in without]
    weights = _weights(costs, order)
    if isinstance(order, range):
        return [_cut(order[first : first + rows], weights) for first in range(0, len(order), rows)]
    return _alternating(list(_cuts(order[::-1], weights, rows)))


def _alternating(cuts: list[Cut]) -> list[Cut]:
    """Cuts of long rows and of short rows in turn. Interactive calls then do not wait behind the longest rows several times in
    a row, and the rate of a run predicts the rest of it better.
    """
    middle = (len(cuts) + 1) // 2
    return [cut for pair in zip_longest(cuts[:middle], reversed(cuts[middle:])) for cut in pair if cut is not None]


def _weights(costs: Sequence[int], order: Sequence[int]) -> Sequence[float]:
    """The weight of each place; the mean over `order` is 1."""
    total = sum(costs[place] for place in order)
    if not total:
        return [1.0] * len(costs)
    per_unit = _BY_LENGTH * len(order) / total
    return [1.0 - _BY_LENGTH + per_unit * cost for cost in costs]


def _cuts(order: Sequence[int], weights: Sequence[float], rows: int) -> Iterator[Cut]:
    first, weight = 0, 0.0
    for at, place in enumerate(order):
        if at > first and (at - first == rows or weight + weights[place] > rows):
            yield _cut(order[first:at], weights)
            first, weight = at, 0.0
        weight += weights[place]
    if first < len(order):
        yield _cut(order[first:], weights)


def _cut(places: Sequence[int], weights: Sequence[float]) -> Cut:
    return Cut(places, sum(weights[place] for place in places))
