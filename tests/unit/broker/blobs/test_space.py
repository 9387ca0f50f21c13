from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.broker.blobs import space
from penstock.broker.blobs.space import DiskReserve, FileCensus, FileUsage
from penstock.broker.blobs.uploads import FileRecord, FileStore, NewFile
from penstock.errors import StorageFull

NOW = 1_000.0


def stored(files: FileStore, owner: str, size: int) -> FileRecord:
    upload = files.upload(NewFile(owner, "a", "batch"), max_bytes=size, now=NOW)
    upload.write(b"x" * size)
    return upload.finish(purpose="batch", filename="a", ttl_s=0.0)


def test_the_reserve_of_a_disk_is_left_to_the_store(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    for folder in (tmp_path, tmp_path / "not" / "made" / "yet"):
        DiskReserve(folder, free // 2).require(free // 4)
        with pytest.raises(StorageFull, match="kept for the store"):
            DiskReserve(folder, free // 2).require(free)
    DiskReserve(None, 2 * free).require(free)  # an object store has no disk of ours
    DiskReserve(tmp_path, 0).require(2 * free)


def test_each_owner_has_a_usage_of_its_own_counted_anew_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileStore(tmp_path)
    stored(files, "ann", 10)
    stored(files, "ann", 20)
    stored(files, "bob", 5)
    under_way = files.upload(NewFile("ann", "a", "batch"), max_bytes=9, now=NOW)
    census = FileCensus(files)
    assert (census.usage("ann"), census.usage("bob"), census.usage("eve")) == (FileUsage(2, 30), FileUsage(1, 5), FileUsage())
    under_way.drop()
    elsewhere = stored(files, "bob", 7)
    assert census.usage("bob") == FileUsage(1, 5)
    monkeypatch.setattr(space, "COUNT_AGE_S", -1.0)  # the next look counts anew, as after the age
    assert census.usage("bob") == FileUsage(2, 12)
    files.delete(elsewhere.id)
    assert census.usage("bob") == FileUsage(1, 5)


def test_what_this_process_stores_and_deletes_counts_at_once(tmp_path: Path) -> None:
    files = FileStore(tmp_path)
    census = FileCensus(files)
    assert census.usage("ann") == FileUsage()
    census.add("file-1", "ann", 10)
    assert census.usage("ann") == FileUsage(1, 10)
    census.discard("file-1", "ann")
    assert census.usage("ann") == FileUsage()
