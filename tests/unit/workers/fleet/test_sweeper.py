from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import Repair, SweepReport
from penstock.errors import StoreUnavailable
from penstock.workers.fleet.sweeper import Sweeper

LEASE_S, BEAT_S = 6.0, 2.0


class Store:
    """A store that lists missing workers and records those swept as gone. If `missing` is None, the store does not answer."""

    def __init__(self) -> None:
        self.missing: set[str] | None = set()
        self.gone: list[list[str]] = []

    def absent(self, model: str) -> list[str]:
        if self.missing is None:
            raise StoreUnavailable("away")
        return sorted(self.missing)

    def sweep(self, model: str, *, gone: Sequence[str] = ()) -> SweepReport:
        self.gone.append(list(gone))
        return SweepReport()

    def reconcile(self, model: str, *, cursor: str = "0") -> Repair:
        return Repair()

    def identity(self) -> str:
        return "this store"

    def known(self, serials: Sequence[str]) -> set[str]:
        return set()


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


@pytest.fixture
def sweeper(store: Store, counts: Counts, tmp_path: Path) -> Sweeper:
    return Sweeper(store, LocalBlobs(tmp_path), {"m"}, lease_s=LEASE_S, beat_s=BEAT_S, observer=counts)


def test_a_worker_is_gone_when_it_is_missing_twice_in_a_row(sweeper: Sweeper, store: Store) -> None:
    store.missing = {"w"}
    soon = sweeper.run_once(0.0)
    assert soon is not None, "the second look comes soon"
    assert sweeper.run_once(soon) is None
    assert store.gone == [[], ["w"]]


def test_nobody_is_gone_right_after_the_store_came_back(sweeper: Sweeper, store: Store) -> None:
    """After a restart of Redis every subscription is missing for a moment."""
    sweeper.run_once(0.0)
    store.missing = None
    with pytest.raises(StoreUnavailable):
        sweeper.run_once(1.0)
    store.missing = {"w"}
    for now in (2.0, 2.5, 2.0 + LEASE_S / 2):
        sweeper.run_once(now)
    assert store.gone == [[], [], [], []]
    sweeper.run_once(2.1 + LEASE_S * 2 / 3)
    assert store.gone[-1] == ["w"]


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
