"""Segments on a real disk: readers, writers, deleters and collectors that meet, die at any line, or find the disk full."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.blobs.segment_files import TORN_S, is_local
from penstock.broker.blobs.segment_writer import KEPT_SEGMENTS, LARGE_BYTES, SEGMENT_BYTES
from penstock.errors import Gone, StoreUnavailable
from penstock.job import new_serial
from penstock.workers.child.input_files import with_data
from penstock.workers.ipc.frames import Item
from tests.markdown import ROOT

LARGE = 100_000


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path, segments=True)


def payloads(count: int, size: int = LARGE) -> list[tuple[str, bytes]]:
    return [(f"{new_serial()}.in", os.urandom(size)) for _ in range(count)]


def append(blobs: LocalBlobs, count: int, size: int = LARGE) -> dict[str, bytes]:
    given = payloads(count, size)
    return dict(zip(blobs.append_all(given), (data for _, data in given), strict=True))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "segments").rglob("*") if path.is_file() and path.name != "lock")


def names(blobs: LocalBlobs) -> set[str]:
    return {name for name, _ in blobs.names()}


def item(blobs: LocalBlobs, name: str) -> Item:
    [file] = blobs.readable([name])
    assert file is not None
    return Item("image/png", path=str(file.path), offset=file.offset, length=file.length, checksum=file.checksum)


def test_a_group_is_one_file_with_one_sync_and_a_file_that_is_filled_again_needs_no_other(
    blobs: LocalBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    for sync in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, sync, lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    first = append(blobs, 20)
    [file] = files(tmp_path)
    assert synced[-2:] == [str(file), str(file.parent)]
    blobs.delete_all(list(first))
    synced.clear()
    second = append(blobs, 30)
    assert (files(tmp_path), synced) == ([file], [str(file)])
    assert {name: blobs.get(name) for name in second} == second


def test_groups_are_cut_to_the_size_of_a_segment_and_large_payloads_are_files_of_their_own(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    stored = append(blobs, 10, size=LARGE_BYTES)
    assert len(files(tmp_path)) == 10 * LARGE_BYTES // SEGMENT_BYTES
    [alone] = append(blobs, 1, size=LARGE_BYTES + 1)
    assert "@" not in alone
    assert (blobs.local_path(alone) or tmp_path).parent.parent == tmp_path
    assert {name: blobs.get(name) for name in stored} == stored


def test_one_that_reads_while_its_place_is_filled_again_gets_nothing_instead_of_another_payload(blobs: LocalBlobs) -> None:
    [name] = append(blobs, 1)
    late = item(blobs, name)
    blobs.delete_all([name])
    [other] = append(blobs, 1)
    assert item(blobs, other).path == late.path
    [read] = with_data([late])
    assert (read.is_missing, read.data) == (True, b"")
    for look in (blobs.get, lambda name: blobs.peek(name, 10)):
        with pytest.raises(Gone, match=f"blob {name} is not in"):
            look(name)
    blobs.delete_all([name])
    assert names(blobs) == {other}


def test_a_damaged_payload_is_missing_and_its_neighbour_is_not(blobs: LocalBlobs) -> None:
    damaged, whole = append(blobs, 2)
    place = item(blobs, damaged)
    with Path(place.path).open("r+b") as file:
        file.seek(place.offset + 50_000)
        file.write(b"\0damage\0")
    assert [read.is_missing for read in with_data([place, item(blobs, whole)])] == [True, False]
    with pytest.raises(Gone, match="damaged"):
        blobs.get(damaged)


def test_a_backlog_leaves_a_bounded_number_of_empty_files_and_none_once_its_writer_has_gone(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    stored = [name for _ in range(3 * KEPT_SEGMENTS) for name in append(blobs, 2, size=5_000)]
    assert len(files(tmp_path)) == 3 * KEPT_SEGMENTS
    blobs.delete_all(stored)
    assert len(files(tmp_path)) == KEPT_SEGMENTS
    _abandon(blobs)
    assert names(LocalBlobs(tmp_path)) == set()
    assert list((tmp_path / "segments").iterdir()) == []


def test_a_deletion_looks_at_its_own_segment_only(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = [name for _ in range(200) for name in append(blobs, 5, size=100)]
    opened: list[object] = []
    system_open = os.open

    def count_opened(path: Any, *arguments: Any, **named: Any) -> int:
        opened.append(path)
        return system_open(path, *arguments, **named)

    monkeypatch.setattr(os, "open", count_opened)
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("a deletion lists no folder"))
    for name in stored:
        blobs.delete_all([name])
    assert len(opened) <= len(stored)


def test_a_segment_that_one_payload_holds_gives_back_the_room_of_the_others(blobs: LocalBlobs, tmp_path: Path) -> None:
    first = append(blobs, 20)
    [kept, *dead] = first
    path = Path(item(blobs, kept).path)
    before = path.stat().st_blocks
    blobs.delete_all(dead)
    for _ in range(KEPT_SEGMENTS):
        append(blobs, 1, size=10)
    assert blobs.get(kept) == first[kept]
    if path.stat().st_blocks == before:
        pytest.skip("this file system punches no holes")
    assert path.stat().st_blocks * 512 < 3 * LARGE
    blobs.delete_all([kept])
    assert not path.exists()


def test_two_processes_in_one_folder_leave_each_others_segments_alone(tmp_path: Path) -> None:
    one, two = LocalBlobs(tmp_path, segments=True), LocalBlobs(tmp_path, segments=True)
    stored = append(one, 2) | append(two, 2)
    assert len({path.parent for path in files(tmp_path)}) == 2
    assert names(one) == names(two) == set(stored)
    two.delete_all(list(stored))
    # The empty ones stay with those who may fill them again.
    assert (names(one), len(files(tmp_path))) == (set(), 2)


def test_a_new_process_reads_and_collects_what_a_killed_one_left(tmp_path: Path) -> None:
    gone = LocalBlobs(tmp_path, segments=True)
    stored = append(gone, 3)
    empty = append(gone, 3)
    gone.delete_all(list(empty))
    _abandon(gone)
    new = LocalBlobs(tmp_path, segments=True)
    assert {name: new.get(name) for name in stored} == stored
    assert names(new) == set(stored)
    [file] = files(tmp_path)
    new.delete_all(list(stored))
    assert not file.exists()
    append(new, 1)
    assert len(names(new)) == 1


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_a_full_disk_is_the_stores_fault_and_leaves_no_half(
    blobs: LocalBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, is_again: bool
) -> None:
    if is_again:
        blobs.delete_all(list(append(blobs, 3)))

    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, no_space)
        with pytest.raises(StoreUnavailable, match=r"3 blobs \(300000 bytes\) cannot be written .* No space left"):
            append(blobs, 3)
    assert (names(blobs), files(tmp_path)) == (set(), [])
    stored = append(blobs, 3)
    assert {name: blobs.get(name) for name in stored} == stored


@pytest.mark.parametrize("is_again", [False, True])
def test_a_folder_that_was_deleted_meanwhile_is_made_anew(blobs: LocalBlobs, tmp_path: Path, is_again: bool) -> None:
    first = append(blobs, 3)
    if is_again:
        blobs.delete_all(list(first))
    shutil.rmtree(tmp_path)
    assert blobs.readable(list(first)) == [None] * 3
    stored = append(blobs, 3)
    assert {name: LocalBlobs(tmp_path).get(name) for name in stored} == stored


def test_a_frozen_process_that_holds_a_segment_keeps_nobody_from_deleting_others(
    blobs: LocalBlobs, caplog: pytest.LogCaptureFixture
) -> None:
    frozen, other = append(blobs, 1) | append(blobs, 1)
    with Path(item(blobs, frozen).path).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        blobs.delete_all([frozen, other])
    assert names(blobs) == {frozen}
    blobs.delete_all([frozen])
    assert names(blobs) == set()


def test_a_write_that_the_disk_takes_in_parts_is_whole(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, parts, at: whole(file, [b"".join(parts)[:10_007]], at))
    stored = append(blobs, 5)
    assert {name: blobs.get(name) for name in stored} == stored


def test_what_is_no_whole_segment_goes_once_it_is_old_and_its_writer_has_gone(blobs: LocalBlobs, tmp_path: Path) -> None:
    [name] = append(blobs, 1)
    [file] = files(tmp_path)
    torn, foreign = file.with_name("fffe"), file.with_name("ffff")
    torn.write_bytes(file.read_bytes()[:1_000])
    foreign.write_bytes(b"penstk02" + bytes(5_000))
    old = time.time() - TORN_S - 60.0
    os.utime(torn, (old, old))
    os.utime(foreign, (old, old))
    assert (names(blobs), torn.exists()) == ({name}, True)
    _abandon(blobs)
    assert (names(LocalBlobs(tmp_path)), torn.exists(), foreign.exists()) == ({name}, False, True)


def test_an_orphans_age_grows_from_pass_to_pass(blobs: LocalBlobs, tmp_path: Path) -> None:
    append(blobs, 2)
    _abandon(blobs)
    [file] = files(tmp_path)
    other = LocalBlobs(tmp_path)
    assert len(names(other)) == 2
    old = time.time() - 5_000.0
    os.utime(file, (old, old))
    assert all(age_s > 4_000.0 for _ in range(2) for _, age_s in other.names())


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("/dev/sda1 / ext4 rw 0 0", True),
        ("/dev/sda1 / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0", False),
        ("/dev/sda1 / ext4 rw 0 0\nserver:/x /data/blobs\\040of\\040all fuse.ceph rw 0 0", True),
        ("server:/x / nfs4 rw 0 0\n/dev/sdb /data xfs rw 0 0", True),
        ("/dev/sdb /data xfs rw 0 0\nserver:/x /data nfs4 rw 0 0", False),
        ("", False),
    ],
)
def test_segments_are_for_disks_of_this_machine_alone(mounts: str, expected: bool) -> None:
    assert is_local(Path("/data/blobs"), mounts) is expected


def test_killed_at_any_line_it_loses_no_payload_and_leaves_none_for_ever(tmp_path: Path) -> None:
    # A small process forks much faster than the one that runs the tests.
    command = [sys.executable, "-m", "tests.integration.segment_deaths", str(tmp_path)]
    died = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    # The number stands below the log of the segments.
    assert int(died.stdout.split()[-1]) > 100


def _abandon(blobs: LocalBlobs) -> None:
    """Close what the writer has open, as the end of its process does."""
    own = blobs._writer._own
    for number in _descriptors():
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if own is not None and Path(target).parent.name.lstrip(".") == own.name:
            os.close(number)


def _descriptors() -> Iterator[int]:
    yield from [int(number) for number in os.listdir("/proc/self/fd")]
