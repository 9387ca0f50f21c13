"""How a batch is cut into calls of the model. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

# A call has this many tokens before it is worth a thread of its own; the calls become smaller towards the end by this
# factor; and calls whose last thread ends this much later than if all ended together are run with all threads instead, one
# after another. Chosen by python -m benchmarks.models.parallel_calls.
_LEAST_TOKENS = 64
_SHRINK = 1.5
_UNEVEN = 1.15


def by_length(lengths: Sequence[int], *, rows_per_call: int, tokens_per_call: int) -> list[list[int]]:
    """Places of texts that run together, from the shortest up: as many as fit both bounds, at least one.

    A call costs its rows times its longest text, so sorting is what keeps padding low.
    """
    groups: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        last = groups[-1] if groups else []
        fits = len(last) < rows_per_call and (len(last) + 1) * lengths[place] <= tokens_per_call
        if last and fits:
            last.append(place)
        else:
            groups.append([place])
    return groups


def in_parallel(lengths: Sequence[int], *, rows_per_call: int, tokens_per_call: int, threads: int) -> list[list[int]]:
    """Places of texts that run together, from the longest down, for threads that each take the next call when they are free.

    Calls shrink with what is left, so that all threads end at nearly the same time (guided self-scheduling: Polychronopoulos
    and Kuck, IEEE Transactions on Computers C-36, 1987). Nothing where they would not: too few texts, or one far too long.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    left, calls = sum(lengths), []
    while order:
        tokens = min(tokens_per_call, max(_LEAST_TOKENS, left / (_SHRINK * threads)))
        rows = max(1, min(rows_per_call, int(tokens // max(1, lengths[order[0]]))))
        call, order = order[:rows], order[rows:]
        left -= sum(lengths[place] for place in call)
        calls.append(call)
    return calls if _even([len(call) * lengths[call[0]] for call in calls], threads) else []


def shrinking(items: int, *, threads: int) -> list[list[int]]:
    """The same for items of equal cost: their places in calls that shrink; nothing where the threads would not end together."""
    calls: list[list[int]] = []
    first = 0
    while first < items:
        last = first + math.ceil((items - first) / (_SHRINK * threads))
        calls.append(list(range(first, last)))
        first = last
    return calls if _even([len(call) for call in calls], threads) else []


def _even(costs: Sequence[int], threads: int) -> bool:
    """Whether the threads end at nearly the same time."""
    ends = [0] * threads
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends) * threads <= _UNEVEN * sum(costs)
