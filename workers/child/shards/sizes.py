"""How many rows of a shard to run at once. Pure: moments are monotonic and passed in; durations are in seconds.

Sizes are 1, 2, 4 ... and the handler's limit. The best size is learned per class of similar cost: the one for short texts does
not suit long ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median

# How many runs of a size make its figures trusted, and how many are remembered.
_TRUSTED_RUNS = 3
_WINDOW = 5
# A smaller size must be clearly cheaper per row, because a larger one also saves costs that are not measured here.
_CHEAPER = 0.93
# Micro-batches that run longer than `_LONG_S` are an exception, because an online call after a pause may find one under way. Of
# these the smallest size is taken that costs at most 5 % more per row than the cheapest size, and 8 % more for very long ones.
# The comparison is with the cheapest size and not with the next larger one: 5 % at each halving would add up.
# Chosen by `python -m benchmarks.bulk --only embed` and `--only online`: with all long micro-batches allowed, a run came closer
# to the speed of one plain loop per core, but the online p99 missed its target of 1.5 times that without a run.
_LONG_S, _LONG_TOLERANCE = 0.05, 1.05
_VERY_LONG_S, _VERY_LONG_TOLERANCE = 0.2, 1.08
# After this many runs the two sizes beside the best one, and the cheapest, are tried again: a few runs at up to twice the cost
# add about 1 %.
_AGAIN_AFTER = 512
# Online batches that ran within this time keep micro-batches short.
ONLINE_RECENT_S = 2.0
_ONLINE_WINDOW = 64
_LONG_QUANTILE = 0.9


class _CostClass:
    """Rows of similar cost: seconds per size, for all stages and for the device alone."""

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

    def is_trusted(self, size: int) -> bool:
        return len(self.whole.get(size, ())) >= _TRUSTED_RUNS

    def per_row(self, size: int) -> float:
        return median(self.whole[size]) / size

    def prefers(self, size: int) -> bool:
        """Whether `size` is better than the best one so far; both must be trusted."""
        cost, so_far = self.per_row(size), self.per_row(self.best)
        run_s = median(self.device[max(size, self.best)])
        if run_s <= _LONG_S:
            return cost < so_far * (_CHEAPER if size < self.best else 1.0)
        bound = self.per_row(self.cheapest_known()) * (_LONG_TOLERANCE if run_s <= _VERY_LONG_S else _VERY_LONG_TOLERANCE)
        if min(size, self.best) == size:
            return cost <= max(bound, so_far)
        return so_far > bound and cost < so_far

    def cheapest_known(self) -> int:
        return min((size for size in self.whole if self.is_trusted(size)), key=self.per_row, default=self.best)

    def forget(self) -> None:
        """Forget all sizes except the best one. Its neighbours, and the cheapest, are then tried again."""
        self.cheapest = self.cheapest_known()
        for other in [tried for tried in self.whole if tried != self.best]:
            del self.whole[other]


class ShardSizes:
    """`limit`: the most rows of one call. `warm`: seconds per size from the warm-up.

    `slice_s`: how long a micro-batch may delay online jobs. None: as long as nine of ten online batches run at most.
    """

    def __init__(self, limit: int, *, warm: Mapping[int, float] | None = None, slice_s: float | None = None) -> None:
        self._ladder = [size for size in (1 << power for power in range(limit.bit_length())) if size < limit] + [limit]
        self._warm = dict(warm or {})
        self._slice_s = slice_s
        self._classes: dict[int, _CostClass] = {}
        self._cap = limit
        self._since_cap = 0
        self._online: deque[float] = deque(maxlen=_ONLINE_WINDOW)
        self._online_at = float("-inf")

    # What happened.

    def on_online_ran(self, run_s: float, at: float) -> None:
        """A batch of online jobs ran."""
        self._online.append(run_s)
        self._online_at = at

    def on_ran(self, size: int, cost: int, *, whole_s: float, device_s: float) -> None:
        """A micro-batch of `size` rows, the costliest of `cost`, took `whole_s` in all stages and `device_s` at the device."""
        if size not in self._ladder:
            return
        kind = self._class_of(cost)
        kind.add(size, whole_s, device_s)
        self._settle(kind, size)
        self._since_cap += size >= self._cap
        if self._since_cap >= _AGAIN_AFTER:
            self._since_cap, self._cap = 0, next((rung for rung in self._ladder if rung > self._cap), self._cap)

    def cap(self, size: int) -> None:
        """More than `size` rows did not fit into memory: run no more for a while."""
        self._cap, self._since_cap = max(rung for rung in self._ladder if rung <= max(1, size)), 0

    def _settle(self, kind: _CostClass, size: int) -> None:
        """Move to the size just tried if three runs show that it is better; forget old trials from time to time."""
        if size != kind.best and kind.is_trusted(size) and kind.is_trusted(kind.best) and kind.prefers(size):
            kind.best = size
        if kind.runs % _AGAIN_AFTER == 0:
            kind.forget()

    # What to do.

    def choose(self, cost: int, now: float) -> int:
        """How many rows to run next if the first of them costs `cost`."""
        kind = self._class_of(cost)
        most = self._largest_in_slice(kind) if now < self._online_at + ONLINE_RECENT_S else self._ladder[-1]
        size = min(kind.best, most, self._cap)
        if size < kind.best or not kind.is_trusted(kind.best):
            return size
        trial = next((rung for rung in self._trials(kind) if not kind.is_trusted(rung)), size)
        return trial if trial <= min(most, self._cap) else size

    def _trials(self, kind: _CostClass) -> list[int]:
        """Sizes worth a try: the last cheapest one, those beside the best one, and the next one above the cheapest known.

        The last finds the cheapest of all even where a smaller size is kept because it is nearly as cheap.
        """
        at, top = self._ladder.index(kind.best), self._ladder.index(kind.cheapest_known())
        return [
            kind.cheapest,
            *self._ladder[max(0, at - 1) : at],
            *self._ladder[at + 1 : at + 2],
            *self._ladder[top + 1 : top + 2],
        ]

    def _largest_in_slice(self, kind: _CostClass) -> int:
        """The largest size that is expected to keep the slice; 1 if none does."""
        slice_s = self._slice_s if self._slice_s is not None else _long_one(self._online)
        fitting = [size for size in self._ladder if self._expect(kind, size) <= slice_s]
        return max(fitting, default=self._ladder[0])

    def _expect(self, kind: _CostClass, size: int) -> float:
        """Seconds at the device: as measured, or derived from the nearest measured size by the warm-up's figures."""
        known = kind.device or {}
        if size in known:
            return median(known[size])
        if not known:
            return self._warm_s(size) if self._warm else float("inf")
        near = min(known, key=lambda other: abs(other.bit_length() - size.bit_length()))
        return median(known[near]) * self._warm_s(size) / self._warm_s(near)

    def _warm_s(self, size: int) -> float:
        if size in self._warm:
            return self._warm[size]
        if not self._warm:
            return float(size)
        near = min(self._warm, key=lambda other: abs(other.bit_length() - size.bit_length()))
        return self._warm[near] * size / near

    def _class_of(self, cost: int) -> _CostClass:
        step = cost.bit_length()
        cost_class = self._classes.get(step)
        if cost_class is None:
            cost_class = self._classes[step] = _CostClass(self._first_size(step))
        return cost_class

    def _first_size(self, step: int) -> int:
        """For a class without runs: the largest size that should not be long, judged by the nearest class.

        One step between classes doubles the cost.
        """
        known = [kind for kind in self._classes if self._classes[kind].device]
        if not known:
            return self._ladder[-1]
        near = min(known, key=lambda other: abs(other - step))
        kind, times = self._classes[near], 2.0 ** (step - near)
        return max((size for size in self._ladder if self._expect(kind, size) * times <= _LONG_S), default=self._ladder[0])


def _long_one(runs: Collection[float]) -> float:
    """The time that nine of ten runs do not exceed; 0 before the first run."""
    return sorted(runs)[int(_LONG_QUANTILE * (len(runs) - 1))] if runs else 0.0
