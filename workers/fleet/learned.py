"""Keeps in the store how long batches take, so that after a restart batching is as good as before it.

What is kept holds for one version on one kind of device, with one runtime and as many threads; anything else starts anew.
D63: docs/design/batching.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from penstock.broker.store.registry import KeptTimes
from penstock.broker.store.sync import RedisStore
from penstock.workers.slot.slot import Slot

SAVE_EVERY_S = 30.0
# Smaller changes are noise, and each save is a write with its sync.
_CHANGED = 0.2
_MOST_SIZES = 32


class TimesKeeper:
    """For the beat's thread: keeps what the slots of this worker have learned. A slot reads it by itself at its start."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Mapping[int, float]] = {}
        self._save_at: dict[tuple[str, str], float] = {}

    def save(self, store: RedisStore, slots: Sequence[Slot], now: float) -> None:
        """`now` is by the store's clock. Raises `StoreUnavailable`."""
        for slot in slots:
            times, key = some_of(slot.trusted_times()), (slot.spec.name, slot.kind)
            if now >= self._save_at.get(key, 0.0) and differ(times, self._kept.get(key, {})):
                store.keep_learned_times(*key, KeptTimes(times, now))
                self._kept[key], self._save_at[key] = times, now + SAVE_EVERY_S
        self._forget_all_but({(slot.spec.name, slot.kind) for slot in slots})

    def _forget_all_but(self, served: Set[tuple[str, str]]) -> None:
        """A worker sees many versions in its life; of one that comes back, one write tells the store again."""
        for key in self._kept.keys() - served:
            del self._kept[key], self._save_at[key]


def some_of(times: Mapping[int, float]) -> dict[int, float]:
    """At most 32 of the sizes, the smallest and the largest among them: those between two of them lie near the line."""
    sizes = sorted(times)
    if len(sizes) > _MOST_SIZES:
        last = len(sizes) - 1
        sizes = [sizes[place * last // (_MOST_SIZES - 1)] for place in range(_MOST_SIZES)]
    return {size: times[size] for size in sizes}


def differ(times: Mapping[int, float], kept: Mapping[int, float]) -> bool:
    """Whether these times say something that the kept ones do not: a new size, or a clearly different time."""
    return any(size not in kept or abs(run_s - kept[size]) > _CHANGED * kept[size] for size, run_s in times.items())
