"""Cuts a batch into the places of shards: rows of like cost together, shards about as long as each other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from penstock.shard import by_cost, row_costs

# How much of a row's weight its length decides; the rest all rows have alike. With one half, a shard is at most twice as long
# as meant, whether the model's time goes by rows or by length.
_BY_LENGTH = 0.5


class Cut(NamedTuple):
    """The places of one shard's rows. `weight`: as many rows of mean cost would take as long."""

    places: Sequence[int]
    weight: float


def cut(inputs: Sequence[Any], rows: int, *, without: frozenset[int] = frozenset()) -> list[Cut]:
    """Every place of `inputs` but those `without` a need to run; at most `rows` in a cut, dearest and cheapest first."""
    costs = row_costs(inputs)
    order = by_cost(costs)
    if without:
        order = [place for place in order if place not in without]
    weights = _weights(costs, order)
    if isinstance(order, range):
        return [_cut(order[first : first + rows], weights) for first in range(0, len(order), rows)]
    return _alternating(list(_cuts(order[::-1], weights, rows)))


def _alternating(cuts: list[Cut]) -> list[Cut]:
    """Long rows and short ones in turn: calls that wait behind a shard's rows must not meet the longest of them one after the
    other, and a run's pace says more of what is left.
    """
    middle = (len(cuts) + 1) // 2
    return [cut for pair in zip_longest(cuts[:middle], reversed(cuts[middle:])) for cut in pair if cut is not None]


def _weights(costs: Sequence[int], order: Sequence[int]) -> Sequence[float]:
    """By place, with a mean of 1 over `order`."""
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
