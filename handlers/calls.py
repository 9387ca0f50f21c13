"""How a batch is cut into calls of the model: by cost, and for threads that run side by side (D45). Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

# D45: docs/design/batching.md
# These three were chosen with python -m benchmarks.models.parallel_calls.
# A call needs this many tokens to be worth a thread of its own.
_MIN_TOKENS = 64
# Each call takes the rest of the batch divided by this factor times the number of threads.
_SHRINK_FACTOR = 1.5
# If the last thread would end later than this multiple of the even time, the calls run one after another with all threads.
_MAX_UNEVENNESS = 1.15


def group_by_cost(costs: Sequence[float], *, most_items: int, most_cost: float) -> list[list[int]]:
    """The places of the items of each call, from the cheapest up: as many items as fit both bounds, at least one.

    A call costs its items times the costliest of them, so sorted items keep the padding low.
    """
    groups: list[list[int]] = []
    for place in sorted(range(len(costs)), key=costs.__getitem__):
        last = groups[-1] if groups else []
        fits = len(last) < most_items and (len(last) + 1) * costs[place] <= most_cost
        if last and fits:
            last.append(place)
        else:
            groups.append([place])
    return groups


def parallel_by_cost(costs: Sequence[float], *, most_items: int, most_cost: float, threads: int) -> list[list[int]]:
    """The places of the items of each call, from the costliest down, for threads that take the next call when they are free.

    Calls shrink with the rest of the batch, so that all threads end at nearly the same time (guided self-scheduling:
    Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987). Empty if they would not: for too few items, or if
    one item is far costlier than the others. The unit of costs is the token.
    """
    order = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
    left, calls = sum(costs), []
    while order:
        cost = min(most_cost, max(_MIN_TOKENS, left / (_SHRINK_FACTOR * threads)))
        items = max(1, min(most_items, int(cost // max(1, costs[order[0]]))))
        call, order = order[:items], order[items:]
        left -= sum(costs[place] for place in call)
        calls.append(call)
    return calls if _is_even([len(call) * costs[call[0]] for call in calls], threads) else []


def shrinking_calls(items: int, *, threads: int) -> list[list[int]]:
    """As `parallel_by_cost`, for items of equal cost."""
    calls: list[list[int]] = []
    first = 0
    while first < items:
        last = first + math.ceil((items - first) / (_SHRINK_FACTOR * threads))
        calls.append(list(range(first, last)))
        first = last
    return calls if _is_even([len(call) for call in calls], threads) else []


def _is_even(costs: Sequence[float], threads: int) -> bool:
    """True if the threads end at nearly the same time."""
    ends = [0.0] * threads
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends) * threads <= _MAX_UNEVENNESS * sum(costs)
