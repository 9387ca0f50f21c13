from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.broker.store.registry import MOST_KINDS, KeptTimes, outdated
from penstock.model_spec import ModelSpec
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
class LearnedSlot:
    """What a keeper asks of a slot."""

    spec: ModelSpec

    @property
    def kind(self) -> str:
        return f"{self.spec.version} | cpu"

    def trusted_times(self) -> dict[int, float]:
        return {1: 0.1}


class WrittenTimes:
    """What a keeper asks of the store: every write, by kind."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def keep_learned_times(self, model: str, kind: str, times: KeptTimes) -> None:
        self.kinds.append(kind)


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
