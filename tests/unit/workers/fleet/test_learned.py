from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.broker.store.registry import MOST_KINDS, KeptTimes, outdated
from penstock.model_spec import ModelSpec, SlotInfo
from penstock.workers.fleet.learned import TimesKeeper, differ, some_of


def test_few_sizes_are_kept_whole() -> None:
    assert some_of({8: 0.2, 1: 0.1}) == {1: 0.1, 8: 0.2}


def test_of_many_sizes_the_smallest_the_largest_and_some_between_are_kept() -> None:
    kept = some_of({size: size / 1000 for size in range(1, 1025)})
    assert (len(kept), min(kept), max(kept)) == (32, 1, 1024)


def test_a_new_size_or_a_clear_change_is_worth_a_write() -> None:
    kept = {1: 0.010, 8: 0.020}
    assert not differ({}, kept)
    assert not differ({1: 0.0105, 8: 0.019}, kept)
    assert differ({1: 0.010, 4: 0.015}, kept)
    assert differ({8: 0.025}, kept)


def test_the_oldest_kinds_go_when_there_are_too_many() -> None:
    kept = {f"kind {n}": KeptTimes({1: 0.1}, at=float(n)) for n in range(MOST_KINDS + 2)}
    assert outdated(kept) == ["kind 0", "kind 1"]
    assert outdated({"only": KeptTimes({1: 0.1}, at=1.0)}) == []


@dataclass
class LearnedTimes:
    run_s: dict[int, float]

    def trusted(self) -> dict[int, float]:
        return self.run_s


@dataclass
class LearnedFacts:
    kind: str
    latency: LearnedTimes
    told: SlotInfo

    def info(self) -> SlotInfo:
        return self.told


@dataclass
class LearnedSlot:
    """What a keeper asks of a slot."""

    spec: ModelSpec
    run_s: dict[int, float] = field(default_factory=lambda: {1: 0.1})
    start_s: float = 2.0
    state: str = "ready"

    @property
    def facts(self) -> LearnedFacts:
        told = SlotInfo(self.spec.name, self.spec.version, self.state, start_s=self.start_s)
        return LearnedFacts(f"{self.spec.version} | cpu", LearnedTimes(self.run_s), told)


class WrittenTimes:
    """What a keeper asks of the store: every write, by kind."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.times: dict[str, KeptTimes] = {}

    def keep_learned_times(self, model: str, kind: str, times: KeptTimes) -> None:
        self.kinds.append(kind)
        self.times[kind] = times

    def learned_times(self, model: str) -> dict[str, KeptTimes]:
        return self.times


def test_a_keeper_writes_what_is_new_and_forgets_the_versions_that_have_left_the_worker() -> None:
    keeper, store = TimesKeeper(), WrittenTimes()
    slots: list[Any] = [LearnedSlot(ModelSpec("m", "", version)) for version in ("1", "2")]
    written: Any = store
    for now in (0.0, 100.0):
        keeper.save(written, slots, now)
    assert store.kinds == ["1 | cpu", "2 | cpu"]
    keeper.save(written, slots[1:], 200.0)
    assert [kind for _, kind in keeper._kept] == [kind for _, kind in keeper._save_at] == ["2 | cpu"]
    keeper.save(written, slots, 300.0)
    assert store.kinds == ["1 | cpu", "2 | cpu", "1 | cpu"]


def _of_states(*states: str) -> list[Any]:
    return [LearnedSlot(ModelSpec("m", ""), state=state, run_s={}) for state in states]


def test_what_a_slot_takes_is_kept_beside_the_times_and_does_not_replace_them() -> None:
    keeper, store = TimesKeeper(), WrittenTimes()
    written: Any = store
    loading, fresh, used = _of_states("loading", "ready", "ready")
    keeper.save(written, [loading], 0.0)
    assert store.kinds == []
    store.times["1 | cpu"] = KeptTimes({8: 0.4}, 0.0)
    keeper.save(written, [fresh], 0.0, memory={("m", "1"): 7_000})
    assert store.times["1 | cpu"] == KeptTimes({8: 0.4}, 0.0, 2.0, 7_000)
    keeper.save(written, [used], 60.0, memory={("m", "1"): 7_100})
    assert len(store.kinds) == 1, "a hundredth more is noise"
    keeper.save(written, [used], 90.0, memory={("m", "1"): 14_000})
    assert store.times["1 | cpu"].memory_bytes == 14_000
