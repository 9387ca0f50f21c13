from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import Absent, Repair, SweepReport
from penstock.errors import StoreUnavailable
from penstock.job import new_serial
from penstock.workers.fleet.sweeper import SLICES, Sweeper
from penstock.workers.slot.needless import NeedlessBlobs

LEASE_S, BEAT_S = 6.0, 2.0


class Store:
    """A store that lists missing workers and records those swept as gone. If `missing` is None, the store does not answer.

    `due` are the jobs that are due by model, and a sweep moves at most a thousand of them. Those of `broken` cannot be swept.
    `wrong` are the records to be mended by model, of which one call mends at most a thousand.
    """

    def __init__(self) -> None:
        self.missing: set[str] | None = set()
        self.is_watched_by_others = False
        self.fresh = 0
        self.due: Counter[str] = Counter()
        self.broken: set[str] = set()
        self.wrong: Counter[str] = Counter()
        self.reconciled: list[str] = []
        self.gone: list[list[str]] = []
        self.swept: list[str] = []
        self.looks = 0

    def absent(self, model: str, *, sweeper: str, pace_s: float, again_s: float) -> Absent:
        self.looks += 1
        if self.is_watched_by_others:
            return Absent(looked=False)
        return Absent(fresh=self.fresh, gone=tuple(sorted(self.missing or ())))

    def sweep(self, model: str, *, gone: Sequence[str] = ()) -> SweepReport:
        if self.missing is None:
            raise StoreUnavailable("away")
        if model in self.broken:
            raise RuntimeError(f"the record of a job of {model} makes no sense")
        self.gone.append(list(gone))
        self.swept.append(model)
        collected = min(1_000, self.due[model])
        self.due[model] -= collected
        return SweepReport(collected=collected, more=self.due[model] > 0)

    def reconcile_next(self, model: str, *, pace_s: float, heal_s: float) -> Repair:
        self.reconciled.append(model)
        mended = min(1_000, self.wrong[model])
        self.wrong[model] -= mended
        return Repair(scanned=1_000, orphans=mended, is_more_due=mended > 0)

    def identity(self) -> str:
        return "this store"

    def known(self, serials: Sequence[str]) -> set[str]:
        return set()

    def safe_ends(self, queue: str, serials: Sequence[str], *, replicas: int) -> set[str] | None:
        return None


class Counts:
    def __init__(self) -> None:
        self.sweeps = self.reconciled = 0

    def swept(self, report: SweepReport) -> None:
        self.sweeps += 1

    def on_repaired(self, found: Repair) -> None:
        self.reconciled += 1


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def counts() -> Counts:
    return Counts()


def sweeper_of(store: Store, counts: Counts, folder: Path, *models: str) -> Sweeper:
    blobs = LocalBlobs(folder)
    needless = NeedlessBlobs(blobs, store, replicas=None)
    return Sweeper(
        store,
        blobs,
        set(models),
        name="w1",
        needless=needless,
        lease_s=LEASE_S,
        beat_s=BEAT_S,
        sweep_s=1.0,
        observer=counts,
    )


@pytest.fixture
def sweeper(store: Store, counts: Counts, tmp_path: Path) -> Sweeper:
    return sweeper_of(store, counts, tmp_path, "m")


def test_a_lease_holder_that_is_newly_missing_is_looked_for_again_soon(sweeper: Sweeper, store: Store) -> None:
    store.fresh = 1
    soon = sweeper.run_once(0.0)
    assert soon is not None
    assert soon < 0.5
    store.fresh, store.missing = 0, {"w"}
    assert sweeper.run_once(soon) is None
    assert store.gone == [[], ["w"]]


def test_a_model_that_another_sweeper_looks_after_is_left_to_it(sweeper: Sweeper, store: Store) -> None:
    store.is_watched_by_others = True
    sweeper.run_once(0.0)
    assert (store.looks, store.swept) == (1, [])
    store.is_watched_by_others = False
    sweeper.run_once(1.0)
    assert store.swept == ["m"]


def test_nobody_is_gone_right_after_the_store_came_back(sweeper: Sweeper, store: Store) -> None:
    """After a restart of Redis every subscription is missing for a moment. Who cannot tell leaves the look to others."""
    sweeper.run_once(0.0)
    store.missing = None
    with pytest.raises(StoreUnavailable):
        sweeper.run_once(1.0)
    store.missing, store.looks = {"w"}, 0
    for now in (2.0, 2.5, 2.0 + LEASE_S / 2):
        sweeper.run_once(now)
    assert (store.gone, store.looks) == ([[], [], [], []], 0)
    sweeper.run_once(2.1 + LEASE_S * 2 / 3)
    assert store.gone[-1] == ["w"]


def test_sweeps_follow_each_other_until_nothing_more_is_due(
    store: Store, counts: Counts, tmp_path: Path, sweeper: Sweeper
) -> None:
    """Regression: one sweep per second and a limit of a thousand let finished jobs pile up at more than a thousand a second."""
    store.due["m"] = 7_500
    assert sweeper.run_once(0.0) is None
    assert (store.due["m"], counts.sweeps) == (0, 8)


def test_a_flood_in_one_model_neither_holds_up_the_others_nor_the_sweeper(store: Store, counts: Counts, tmp_path: Path) -> None:
    sweeper = sweeper_of(store, counts, tmp_path, "flood", "quiet")
    store.due.update(flood=1_000_000, quiet=1_500)
    soon = sweeper.run_once(0.0)
    assert soon is not None
    assert soon < 0.1
    assert store.swept[:5] == ["flood", "quiet", "flood", "quiet", "flood"]
    assert store.due == {"flood": 1_000_000 - SLICES * 1_000, "quiet": 0}


def test_an_error_in_one_model_stays_its_own(store: Store, counts: Counts, tmp_path: Path) -> None:
    """Regression: what failed in one model kept the sweeper from all models behind it, second after second."""
    sweeper = sweeper_of(store, counts, tmp_path, "a", "b", "c")
    store.broken.add("b")
    sweeper.run_once(0.0)
    assert (store.swept, counts.reconciled) == (["a", "c"], 3)


def test_a_blob_that_cannot_be_deleted_does_not_end_the_sweep(store: Store, counts: Counts, tmp_path: Path) -> None:
    sweeper = sweeper_of(store, counts, tmp_path, "a", "b")
    name = undeletable_blob(tmp_path)
    store.sweep = lambda model, *, gone=(): SweepReport(collected=1, blobs=(name,))  # type: ignore[method-assign]
    assert sweeper.run_once(0.0) is None
    assert counts.sweeps == 2


def undeletable_blob(folder: Path) -> str:
    """A folder has the name of the blob, so unlink fails for every user, root included."""
    blobs, name = LocalBlobs(folder), f"{new_serial()}.in"
    blobs.put(name, b"x")
    path = blobs.local_path(name)
    assert path is not None
    path.unlink()
    path.mkdir()
    return name


def test_a_process_that_was_stopped_for_a_while_sweeps_nothing_for_one_beat(sweeper: Sweeper, counts: Counts) -> None:
    for now in (0.0, 100.0, 100.0 + BEAT_S / 2):
        sweeper.run_once(now)
    assert counts.sweeps == 1
    sweeper.run_once(100.0 + BEAT_S)
    assert counts.sweeps == 2


def test_records_are_compared_with_their_queues_every_half_minute(sweeper: Sweeper, counts: Counts) -> None:
    for now in range(0, 61, 2):
        sweeper.run_once(float(now))
    assert counts.reconciled == 3


def test_what_a_crash_left_wrong_is_healed_page_after_page(sweeper: Sweeper, store: Store) -> None:
    # Regression: a page of a thousand records every half minute took 50 minutes for a hundred thousand.
    store.wrong["m"] = 100_000
    now, calls = 0.0, 0
    while (soon := sweeper.run_once(now)) is not None:
        now, calls = now + soon, calls + 1
    assert (store.wrong["m"], len(store.reconciled), calls) == (0, 101, 100)
    assert now < 30.0
    # The sweeps in between are as many as the pages: whatever else is due does not wait for the healing.
    assert len(store.swept) == 101


def test_calls_that_come_sooner_heal_no_more(sweeper: Sweeper, store: Store) -> None:
    store.wrong["m"] = 100_000
    for hundredths in range(100):
        sweeper.run_once(hundredths / 100)
    assert len(store.reconciled) == 5


def test_queues_that_are_healed_take_turns_with_one_page_at_a_time(store: Store, counts: Counts, tmp_path: Path) -> None:
    sweeper = sweeper_of(store, counts, tmp_path, "a", "b", "c")
    store.wrong.update(a=3_000, c=2_000)
    sweeper.run_once(0.0)
    assert store.reconciled == ["a", "b", "c"]
    for fifths in range(1, 10):
        sweeper.run_once(fifths / 5 + 0.001)
    assert store.reconciled[3:] == ["a", "c", "a", "c", "a"]
    for seconds in range(3, 32, 2):
        sweeper.run_once(float(seconds))
    assert store.reconciled[8:] == ["a", "b", "c"]


def test_a_queue_that_another_sweeper_heals_is_left_to_it(sweeper: Sweeper, store: Store) -> None:
    store.wrong["m"] = 5_000
    assert sweeper.run_once(0.0) is not None
    store.reconcile_next = lambda model, *, pace_s, heal_s: Repair("")  # type: ignore[method-assign]
    assert sweeper.run_once(0.3) is None
