from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.errors import Gone, InternalError, StoreUnavailable
from penstock.job import new_serial


def input_name() -> str:
    return f"{new_serial()}.in"


def test_the_data_and_its_entry_are_synced_before_put_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    name = input_name()
    LocalBlobs(tmp_path / "blobs").put(name, b"x")
    folder = next((tmp_path / "blobs").iterdir())
    assert synced == [str(tmp_path / "blobs"), str(folder / name), str(folder)]


def test_a_missing_blob_is_told_with_its_name_and_folder(tmp_path: Path) -> None:
    name = input_name()
    with pytest.raises(Gone, match=f"blob {name} is not in {tmp_path}"):
        LocalBlobs(tmp_path).get(name)


def test_a_deleted_blob_is_gone_and_deleting_it_again_is_no_fault(tmp_path: Path) -> None:
    store, name = LocalBlobs(tmp_path), input_name()
    store.put(name, b"x")
    store.delete_all([name])
    store.delete_all([name])
    assert store.local_path(name) is None


def test_a_process_beside_it_may_read_the_file_itself(tmp_path: Path) -> None:
    store, name = LocalBlobs(tmp_path), input_name()
    store.put(name, b"x")
    path = store.local_path(name)
    assert path is not None
    assert path.read_bytes() == b"x"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "../etc/passwd",
        "/etc/passwd",
        "a/../b.in",
        "..",
        "0" * 26,
        "0" * 26 + ".in/../x",
        "0" * 26 + ".in\n",
        "0" * 26 + ".a/b.out",
    ],
)
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    store = LocalBlobs(tmp_path)
    for call in (store.get, lambda name: store.delete_all([name]), store.local_path, lambda name: store.put(name, b"")):
        with pytest.raises(InternalError, match="not a blob name"):
            call(name)
    assert list(tmp_path.iterdir()) == []


def test_blobs_of_one_moment_share_a_folder_and_its_sync(tmp_path: Path) -> None:
    store, moment = LocalBlobs(tmp_path), new_serial()[:8]
    store.put_all([(f"{moment}{new_serial()[8:]}.in", b"") for _ in range(10)])
    assert len(list(tmp_path.iterdir())) == 1


def test_blobs_are_spread_over_folders_and_those_of_one_job_lie_together(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path)
    serials = [f"01kb2{number:03d}{new_serial()[8:]}" for number in range(50)]
    for serial in serials:
        store.put(f"{serial}.in", b"")
        store.put(f"{serial}.ab12.out", b"")
    assert len(list(tmp_path.iterdir())) > 20
    pairs = [(store.local_path(f"{serial}.in"), store.local_path(f"{serial}.ab12.out")) for serial in serials]
    assert all(before and after and before.parent == after.parent for before, after in pairs)


def test_names_tells_every_blob_with_its_age_and_nothing_else(tmp_path: Path) -> None:
    store, old, young = LocalBlobs(tmp_path), input_name(), input_name()
    now = time.time()
    for name, age_s in ((old, 500.0), (young, 2.0)):
        store.put(name, b"x")
        path = store.local_path(name)
        assert path is not None
        os.utime(path, (now - age_s, now - age_s))
        (path.parent / "notes.txt").touch()
    assert {name: round(age_s) for name, age_s in store.names()} == {old: 500, young: 2}


def test_a_repeat_cut_short_is_listed_and_can_be_deleted(tmp_path: Path) -> None:
    store, name = LocalBlobs(tmp_path), input_name()
    store.put(name, b"x")
    path = store.local_path(name)
    assert path is not None
    leftover = path.with_name(f"{name}.{'0' * 16}.new")
    leftover.touch()
    assert sorted(found for found, _ in store.names()) == [name, leftover.name]
    store.delete_all([leftover.name])
    assert not leftover.exists()


def test_a_full_disk_is_the_stores_fault_and_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    store, name = LocalBlobs(tmp_path), input_name()
    store._path(name).parent.mkdir()
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.put(name, b"x")
    assert list(store.names()) == []


def test_a_repeat_that_fails_leaves_the_first_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    store, name = LocalBlobs(tmp_path), input_name()
    store.put(name, b"first")
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StoreUnavailable):
        store.put(name, b"first")
    assert [found for found, _ in store.names()] == [name]
    assert store.get(name) == b"first"
