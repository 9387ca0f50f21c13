"""How a batch is cut into calls of the model (D45). Pure."""

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


def group_by_length(lengths: Sequence[int], *, rows_per_call: int, tokens_per_call: int) -> list[list[int]]:
    """The places of the texts of each call, from the shortest up: as many texts as fit both bounds, at least one.

    A call costs its rows times its longest text, so sorted texts keep the padding low.
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


def parallel_by_length(lengths: Sequence[int], *, rows_per_call: int, tokens_per_call: int, threads: int) -> list[list[int]]:
    """The places of the texts of each call, from the longest down, for threads that take the next call when they are free.

    Calls shrink with the rest of the batch, so that all threads end at nearly the same time (guided self-scheduling:
    Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987). Empty if they would not: for too few texts, or if
    one text is far longer than the others.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    tokens_left, calls = sum(lengths), []
    while order:
        tokens = min(tokens_per_call, max(_MIN_TOKENS, tokens_left / (_SHRINK_FACTOR * threads)))
        rows = max(1, min(rows_per_call, int(tokens // max(1, lengths[order[0]]))))
        call, order = order[:rows], order[rows:]
        tokens_left -= sum(lengths[place] for place in call)
        calls.append(call)
    return calls if _is_even([len(call) * lengths[call[0]] for call in calls], threads) else []


def shrinking_calls(items: int, *, threads: int) -> list[list[int]]:
    """As `parallel_by_length`, for items of equal cost."""
    calls: list[list[int]] = []
    first = 0
    while first < items:
        last = first + math.ceil((items - first) / (_SHRINK_FACTOR * threads))
        calls.append(list(range(first, last)))
        first = last
    return calls if _is_even([len(call) for call in calls], threads) else []


def _is_even(costs: Sequence[int], threads: int) -> bool:
    """True if the threads end at nearly the same time."""
    ends = [0] * threads
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends) * threads <= _MAX_UNEVENNESS * sum(costs)
