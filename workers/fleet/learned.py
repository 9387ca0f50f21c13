"""Keeps in the store how long batches take, and what a slot takes to start, so that a worker that starts later knows it.

The times hold for one version on one kind of device, with one runtime and number of threads; anything else starts over.
D63: docs/design/batching.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec import structs

from penstock.broker.store.registry import KeptTimes
from penstock.broker.store.sync import RedisStore
from penstock.workers.fleet.rollouts import Key, key_of
from penstock.workers.slot.slot import Slot

SAVE_EVERY_S = 30.0
# Smaller changes are noise, and each save is a write with its sync.
_CHANGED = 0.2
_MOST_SIZES = 32
NOTHING: Mapping[Key, int] = {}


class TimesKeeper:
    """For the beat's thread: keeps what the slots of this worker have learned. A slot reads it by itself at its start."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], KeptTimes] = {}
        self._save_at: dict[tuple[str, str], float] = {}

    def save(self, store: RedisStore, slots: Sequence[Slot], now: float, *, memory: Mapping[Key, int] = NOTHING) -> None:
        """`memory`: what a slot of each version takes, as far as it is known. `now` is by the store's clock.

        Raises `StoreUnavailable`.
        """
        for slot in slots:
            key = (slot.spec.name, slot.facts.kind)
            if slot.state != "ready" or now < self._save_at.get(key, 0.0):
                continue
            times = KeptTimes(
                some_of(slot.facts.latency.trusted()), now, slot.facts.info().start_s, memory.get(key_of(slot.spec), 0)
            )
            if news(times, self._kept.get(key)):
                store.keep_learned_times(*key, times if times.run_s else _with_run_times(times, store, *key))
                self._kept[key], self._save_at[key] = times, now + SAVE_EVERY_S
        self._forget_all_but({(slot.spec.name, slot.facts.kind) for slot in slots})

    def _forget_all_but(self, served: Set[tuple[str, str]]) -> None:
        """A worker sees many versions in its life; of one that comes back, one write tells the store again."""
        for key in self._kept.keys() - served:
            del self._kept[key], self._save_at[key]


def _with_run_times(times: KeptTimes, store: RedisStore, model: str, kind: str) -> KeptTimes:
    """A slot that has run little yet knows how long it took to start, and nothing that is worth more than what is kept."""
    kept = store.learned_times(model).get(kind)
    return structs.replace(times, run_s=kept.run_s) if kept else times


def some_of(times: Mapping[int, float]) -> dict[int, float]:
    """At most 32 of the sizes, the smallest and the largest among them: those between two of them lie near the line."""
    sizes = sorted(times)
    if len(sizes) > _MOST_SIZES:
        last = len(sizes) - 1
        sizes = [sizes[place * last // (_MOST_SIZES - 1)] for place in range(_MOST_SIZES)]
    return {size: times[size] for size in sizes}


def news(times: KeptTimes, kept: KeptTimes | None) -> bool:
    """Whether these times, or what a slot takes, say something that the kept ones do not."""
    if kept is None:
        return bool(times.run_s or times.start_s)
    pairs = ((times.start_s, kept.start_s), (float(times.memory_bytes), float(kept.memory_bytes)))
    return differ(times.run_s, kept.run_s) or any(abs(value - known) > _CHANGED * known for value, known in pairs if value)


def differ(times: Mapping[int, float], kept: Mapping[int, float]) -> bool:
    """Whether these times say something that the kept ones do not: a new size, or a clearly different time."""
    return any(size not in kept or abs(run_s - kept[size]) > _CHANGED * kept[size] for size, run_s in times.items())
