from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest

from penstock.broker.blobs.files import PASSED, LocalBlobs
from penstock.errors import StoreUnavailable
from penstock.workers.fleet import orphan_blobs as module
from penstock.workers.fleet.orphan_blobs import EVERY_S, FIRST_AFTER_S, OLD_S, OrphanCollector, old_ones, orphans

KNOWN, UNKNOWN = "0" * 26, "1" * 26


class Records:
    """A store that knows the jobs `serials`, and does not answer while it `is_away`. Records questions in `asked`."""

    def __init__(self, *serials: str) -> None:
        self.serials = set(serials)
        self.asked: list[Sequence[str]] = []
        self.is_away = False
        self.name = "store-1"

    def identity(self) -> str:
        return self.name

    def known(self, serials: Sequence[str]) -> set[str]:
        if self.is_away:
            raise StoreUnavailable("gone")
        self.asked.append(serials)
        return self.serials & set(serials)


def put_old(folder: Path, *names: str) -> None:
    """Write blobs that are well older than the limit."""
    blobs, old_at = LocalBlobs(folder), time.time() - OLD_S - 60.0
    for name in names:
        blobs.put(name, b"x")
        path = blobs.local_path(name)
        assert path is not None
        os.utime(path, (old_at, old_at))


def names(folder: Path) -> set[str]:
    return {name for name, _ in LocalBlobs(folder).names()}


def test_a_blob_is_an_orphan_when_no_record_of_its_job_exists() -> None:
    blobs = [f"{KNOWN}.in", f"{KNOWN}.abc.out", f"{UNKNOWN}.in", f"{UNKNOWN}.abc.out"]
    assert orphans(blobs, {KNOWN}) == [f"{UNKNOWN}.in", f"{UNKNOWN}.abc.out"]


def test_a_write_that_was_cut_short_is_an_orphan_even_of_a_living_job() -> None:
    assert orphans([f"{KNOWN}.in.0123456789abcdef.new"], {KNOWN}) == [f"{KNOWN}.in.0123456789abcdef.new"]


def test_a_young_blob_is_left_alone_for_its_record_may_still_be_written() -> None:
    assert old_ones([("young", OLD_S), ("old", OLD_S + 1.0)]) == ["old"]


def test_a_pass_runs_a_minute_after_the_start_and_then_every_ten(tmp_path: Path) -> None:
    # Regression: a crash between writing a blob and its record left the file on disk for good.
    put_old(tmp_path, f"{KNOWN}.in", f"{UNKNOWN}.in")
    collector = OrphanCollector(Records(KNOWN), LocalBlobs(tmp_path))
    collector.run_once(0.0)
    assert len(names(tmp_path)) == 2
    collector.run_once(FIRST_AFTER_S)
    assert names(tmp_path) == {f"{KNOWN}.in"}
    put_old(tmp_path, f"{UNKNOWN}.in")
    collector.run_once(FIRST_AFTER_S + EVERY_S - 1.0)
    assert len(names(tmp_path)) == 2
    os.utime(tmp_path / PASSED, (0.0, 0.0))
    collector.run_once(FIRST_AFTER_S + EVERY_S)
    assert names(tmp_path) == {f"{KNOWN}.in"}


def test_one_worker_goes_over_the_blobs_for_all(tmp_path: Path) -> None:
    """Regression: each worker asked the store for each blob, in all models, every ten minutes."""
    put_old(tmp_path, f"{KNOWN}.in")
    workers = [Records(KNOWN) for _ in range(5)]
    for collector in [OrphanCollector(records, LocalBlobs(tmp_path)) for records in workers]:
        collector.run_once(0.0)
        collector.run_once(FIRST_AFTER_S)
    assert [len(records.asked) for records in workers] == [1, 0, 0, 0, 0]


def test_one_round_looks_at_a_part_only_and_the_next_goes_on_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 2)
    records = Records(*(f"{n:026d}" for n in range(5)))
    put_old(tmp_path, *(f"{n:026d}.in" for n in range(5)))
    collector = OrphanCollector(records, LocalBlobs(tmp_path))
    collector.run_once(0.0)
    for _ in range(5):
        collector.run_once(FIRST_AFTER_S)
    assert [len(part) for part in records.asked] == [2, 2, 1]
    assert sorted(serial for part in records.asked for serial in part) == sorted(records.serials)


def test_nothing_is_deleted_while_the_store_cannot_say_what_it_knows(tmp_path: Path) -> None:
    put_old(tmp_path, f"{UNKNOWN}.in")
    records = Records()
    records.is_away = True
    collector = OrphanCollector(records, LocalBlobs(tmp_path))
    collector.run_once(0.0)
    with pytest.raises(StoreUnavailable):
        collector.run_once(FIRST_AFTER_S)
    assert names(tmp_path) == {f"{UNKNOWN}.in"}


def test_a_blob_that_cannot_be_deleted_does_not_hold_up_the_sweeps(tmp_path: Path) -> None:
    # A folder has the name of the blob, so unlink fails for every user, root included.
    (tmp_path / f"{crc32(UNKNOWN.encode()) % 64:02x}" / f"{UNKNOWN}.in").mkdir(parents=True)
    path = next(tmp_path.glob("*/*"))
    os.utime(path, (0.0, 0.0))
    collector = OrphanCollector(Records(), LocalBlobs(tmp_path))
    collector.run_once(0.0)
    collector.run_once(FIRST_AFTER_S)
    assert path.exists()


def test_the_blobs_of_another_store_and_of_one_that_lost_its_records_are_left_alone(tmp_path: Path) -> None:
    """To a worker on another Redis with the same folder, every blob of the first one looks like an orphan."""
    OrphanCollector(Records(), LocalBlobs(tmp_path)).run_once(0.0)
    put_old(tmp_path, f"{UNKNOWN}.in")
    other = Records()
    other.name = "store-2"
    collector = OrphanCollector(other, LocalBlobs(tmp_path))
    collector.run_once(0.0)
    collector.run_once(FIRST_AFTER_S)
    assert names(tmp_path) == {f"{UNKNOWN}.in"}
    assert other.asked == []
