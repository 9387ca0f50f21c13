"""How many rows of a shard to run at once. Pure; moments are monotonic and passed in, durations in seconds.

Sizes are 1, 2, 4 ... and the handler's limit. Rows of like cost are learned apart: what suits short texts does not suit long
ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median

# Runs of a size until it is believed, and how many are remembered.
_TRUSTED_RUNS = 3
_WINDOW = 5
# A smaller size must be clearly cheaper per row: the larger one also saves what is not measured here.
_CHEAPER = 0.93
# But not where a micro-batch runs longer than this: then the smallest is taken that is not clearly dearer than the cheapest of
# all (than the next larger one would not do: 5 % at each halving add up), and of very long ones the smallest that is not much
# dearer. The first call after a pause finds one under way that nobody had shortened for it. Chosen by
# python -m benchmarks.bulk --only embed and --only online: with all long ones allowed, a run came nearer to a loop per
# core, and the online p99 missed its target of 1.5 times the lone one (docs/performance.md has the figures as it stands).
_LONG_S, _DEARER = 0.05, 1.05
_VERY_LONG_S, _MUCH_DEARER = 0.2, 1.08
# So many runs later the two sizes beside the best one, and the cheapest, are tried again: some runs at up to twice the cost are
# about 1 %.
_AGAIN_AFTER = 512
# Online jobs seen within this time keep micro-batches short.
ONLINE_RECENT_S = 2.0
_ONLINE_WINDOW = 64
_LONG_ONES = 0.9


class _CostClass:
    """Rows of like cost: seconds per size, on the whole and at the device alone."""

    def __init__(self, best: int) -> None:
        self.best = best
        self.cheapest = best
        self.whole: dict[int, deque[float]] = {}
        self.device: dict[int, deque[float]] = {}
        self.runs = 0

    def add(self, size: int, whole_s: float, device_s: float) -> None:
        self.runs += 1
        self.whole.setdefault(size, deque(maxlen=_WINDOW)).append(whole_s)
        self.device.setdefault(size, deque(maxlen=_WINDOW)).append(device_s)

    def trusted(self, size: int) -> bool:
        return len(self.whole.get(size, ())) >= _TRUSTED_RUNS

    def per_row(self, size: int) -> float:
        return median(self.whole[size]) / size

    def prefers(self, size: int) -> bool:
        """Whether `size` is better than the best one so far, both being trusted."""
        cost, so_far = self.per_row(size), self.per_row(self.best)
        run_s = median(self.device[max(size, self.best)])
        if run_s <= _LONG_S:
            return cost < so_far * (_CHEAPER if size < self.best else 1.0)
        bound = self.per_row(self.cheapest_known()) * (_DEARER if run_s <= _VERY_LONG_S else _MUCH_DEARER)
        if min(size, self.best) == size:
            return cost <= max(bound, so_far)
        return so_far > bound and cost < so_far

    def cheapest_known(self) -> int:
        return min((size for size in self.whole if self.trusted(size)), key=self.per_row, default=self.best)

    def forget(self) -> None:
        """All sizes but the best one, which are tried again if they are beside it, or were the cheapest."""
        self.cheapest = self.cheapest_known()
        for other in [tried for tried in self.whole if tried != self.best]:
            del self.whole[other]


class ShardSizes:
    """`limit`: the most rows of one call. `warm`: seconds per size from the warm-up. `slice_s`: how long a micro-batch may
    keep online jobs waiting; None: as long as the long ones among their own batches run, nine of ten being shorter.
    """

    def __init__(self, limit: int, *, warm: Mapping[int, float] | None = None, slice_s: float | None = None) -> None:
        self._ladder = [size for size in (1 << power for power in range(limit.bit_length())) if size < limit] + [limit]
        self._warm = dict(warm or {})
        self._slice_s = slice_s
        self._kinds: dict[int, _CostClass] = {}
        self._cap = limit
        self._since_cap = 0
        self._online: deque[float] = deque(maxlen=_ONLINE_WINDOW)
        self._online_at = float("-inf")

    # What happened.

    def online(self, run_s: float, at: float) -> None:
        """A batch of online jobs ran."""
        self._online.append(run_s)
        self._online_at = at

    def ran(self, size: int, cost: int, *, whole_s: float, device_s: float) -> None:
        """A micro-batch of `size` rows, the dearest of `cost`, took so long on the whole, and at the device."""
        if size not in self._ladder:
            return
        kind = self._kind(cost)
        kind.add(size, whole_s, device_s)
        self._settle(kind, size)
        self._since_cap += size >= self._cap
        if self._since_cap >= _AGAIN_AFTER:
            self._since_cap, self._cap = 0, next((rung for rung in self._ladder if rung > self._cap), self._cap)

    def capped(self, size: int) -> None:
        """More than `size` rows did not fit into memory."""
        self._cap, self._since_cap = max(rung for rung in self._ladder if rung <= max(1, size)), 0

    def _settle(self, kind: _CostClass, size: int) -> None:
        """Move to the size just tried, if three runs say that it is better; forget old trials from time to time."""
        if size != kind.best and kind.trusted(size) and kind.trusted(kind.best) and kind.prefers(size):
            kind.best = size
        if kind.runs % _AGAIN_AFTER == 0:
            kind.forget()

    # What to do.

    def choose(self, cost: int, now: float) -> int:
        """How many rows to run next, the first of them of `cost`."""
        kind = self._kind(cost)
        most = self._longest(kind) if now < self._online_at + ONLINE_RECENT_S else self._ladder[-1]
        size = min(kind.best, most, self._cap)
        if size < kind.best or not kind.trusted(kind.best):
            return size
        trial = next((rung for rung in self._trials(kind) if not kind.trusted(rung)), size)
        return trial if trial <= min(most, self._cap) else size

    def _trials(self, kind: _CostClass) -> list[int]:
        """What is worth a try: what was the cheapest, the sizes beside the best one, and the next one above the cheapest known,
        so that the cheapest of all is found even where a smaller one is kept because it is nearly as cheap."""
        at, top = self._ladder.index(kind.best), self._ladder.index(kind.cheapest_known())
        return [
            kind.cheapest,
            *self._ladder[max(0, at - 1) : at],
            *self._ladder[at + 1 : at + 2],
            *self._ladder[top + 1 : top + 2],
        ]

    def _longest(self, kind: _CostClass) -> int:
        """The largest size that is expected to keep the slice; 1 if none does."""
        slice_s = self._slice_s if self._slice_s is not None else _long_one(self._online)
        fitting = [size for size in self._ladder if self._expect(kind, size) <= slice_s]
        return max(fitting, default=self._ladder[0])

    def _expect(self, kind: _CostClass, size: int) -> float:
        """At the device: as measured, else from the nearest size that was, by the shape that the warm-up found."""
        known = kind.device or {}
        if size in known:
            return median(known[size])
        if not known:
            return self._shape(size) if self._warm else float("inf")
        near = min(known, key=lambda other: abs(other.bit_length() - size.bit_length()))
        return median(known[near]) * self._shape(size) / self._shape(near)

    def _shape(self, size: int) -> float:
        if size in self._warm:
            return self._warm[size]
        if not self._warm:
            return float(size)
        near = min(self._warm, key=lambda other: abs(other.bit_length() - size.bit_length()))
        return self._warm[near] * size / near

    def _kind(self, cost: int) -> _CostClass:
        step = cost.bit_length()
        found = self._kinds.get(step)
        if found is None:
            found = self._kinds[step] = _CostClass(self._first_size(step))
        return found

    def _first_size(self, step: int) -> int:
        """For rows never seen: the largest that should not be long, by the nearest rows that were; a step is twice the cost."""
        known = [kind for kind in self._kinds if self._kinds[kind].device]
        if not known:
            return self._ladder[-1]
        near = min(known, key=lambda other: abs(other - step))
        kind, times = self._kinds[near], 2.0 ** (step - near)
        return max((size for size in self._ladder if self._expect(kind, size) * times <= _LONG_S), default=self._ladder[0])


def _long_one(runs: Collection[float]) -> float:
    """What nine of ten runs do not exceed; 0 before the first."""
    return sorted(runs)[int(_LONG_ONES * (len(runs) - 1))] if runs else 0.0
