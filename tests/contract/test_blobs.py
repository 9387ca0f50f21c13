"""What every kind of blob store promises: a folder, and objects in memory, on a disk and behind an S3 server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from obstore.store import LocalStore, MemoryStore

from penstock.broker.blobs.copies import Copies
from penstock.broker.blobs.files import BlobStore, LocalBlobs
from penstock.broker.blobs.objects import ObjectBlobs
from penstock.broker.blobs.opening import open_blobs
from penstock.errors import Gone, InternalError
from penstock.job import BlobLocation, new_serial
from penstock.workers.child.input_files import with_data
from penstock.workers.ipc.frames import Item

Open = Callable[[], BlobStore]


@pytest.fixture(params=["folder", "shared folder", "objects in memory", "objects on a disk", "objects behind S3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Return a function that opens the same blob store each time."""
    place, copies = tmp_path / "blobs", tmp_path / "copies"
    match request.param:
        case "folder":
            return lambda: LocalBlobs(place, segments=True)
        case "shared folder":
            return lambda: LocalBlobs(place, segments=False)
        case "objects in memory":
            memory = MemoryStore()
            return lambda: ObjectBlobs(memory, Copies(copies), location="memory")
        case "objects on a disk":
            return lambda: ObjectBlobs(LocalStore(place, mkdir=True), Copies(copies), location="disk")
    url = request.getfixturevalue("s3_url")
    return lambda: open_blobs(BlobLocation(place, url, copies))


@pytest.fixture
def blobs(opened: Open) -> BlobStore:
    return opened()


def input_name() -> str:
    return f"{new_serial()}.in"


def read(blobs: BlobStore, name: str) -> bytes | None:
    """Read a blob as a child process does, which deletes nothing."""
    [file] = blobs.readable([name])
    if file is None:
        return None
    [item] = with_data([Item("image/png", path=str(file.path), offset=file.offset, length=file.length, checksum=file.checksum)])
    return None if item.is_missing else item.data


def test_what_was_put_is_got_back_whole(blobs: BlobStore) -> None:
    name, data = input_name(), os.urandom(300_000)
    blobs.put(name, data)
    assert blobs.get(name) == data
    assert read(blobs, name) == data


def test_an_empty_blob_is_a_blob(blobs: BlobStore) -> None:
    name = input_name()
    blobs.put(name, b"")
    assert blobs.get(name) == b""
    assert blobs.peek(name, 10) == (b"", 0)
    assert read(blobs, name) == b""


def test_whoever_opens_the_same_place_reads_it(opened: Open) -> None:
    name = f"{new_serial()}.9f86d081.out"
    opened().put(name, b"x")
    assert opened().get(name) == b"x"


def test_several_are_put_at_once_and_all_are_there(blobs: BlobStore) -> None:
    given = [(input_name(), os.urandom(1000)) for _ in range(40)]
    assert blobs.put_all(given) == [None] * 40
    assert {name: blobs.get(name) for name, _ in given} == dict(given)
    files = blobs.readable([name for name, _ in given])
    assert [file.path.read_bytes() if file else None for file in files] == [data for _, data in given]


def test_what_was_appended_is_known_by_a_name_that_begins_with_its_serial(opened: Open) -> None:
    given = [(input_name(), os.urandom(size)) for size in (1, 4_096, 100_000, 3_000_000)]
    given.append((f"{new_serial()}.9f86d081.out", b"output"))
    names = opened().append_all(given)
    assert [name.partition(".")[0] for name in names] == [name.partition(".")[0] for name, _ in given]
    blobs = opened()
    assert [blobs.get(name) for name in names] == [read(blobs, name) for name in names] == [data for _, data in given]
    assert [blobs.peek(name, 2) for name in names] == [(data[:2], len(data)) for _, data in given]
    assert {name: -1.0 <= age_s < 60.0 for name, age_s in blobs.names()} == dict.fromkeys(names, True)


def test_what_was_appended_and_deleted_is_listed_no_more_and_its_neighbours_stay(blobs: BlobStore) -> None:
    first, second, third = blobs.append_all([(input_name(), os.urandom(50_000)) for _ in range(3)])
    kept = blobs.get(second)
    for _ in range(2):
        blobs.delete_all([first, third])
    assert [name for name, _ in blobs.names()] == [second]
    assert blobs.get(second) == kept
    blobs.delete_all([second])
    assert list(blobs.names()) == []


def test_a_look_shows_the_beginning_and_how_much_there_is(blobs: BlobStore) -> None:
    name = input_name()
    blobs.put(name, b"0123456789")
    assert blobs.peek(name, 4) == (b"0123", 10)
    assert blobs.peek(name, 40) == (b"0123456789", 10)


def test_a_blob_is_read_in_pieces_from_anywhere_to_anywhere(blobs: BlobStore) -> None:
    data = os.urandom(700_000)
    for name in (input_name(), *blobs.append_all([(input_name(), data)])):
        if "@" not in name:
            blobs.put(name, data)
        reader = blobs.open(name)
        assert reader.size == len(data)
        for start, end in ((0, len(data)), (5, 300_005), (699_999, 700_000), (7, 7)):
            assert b"".join(reader.pieces(start, end)) == data[start:end]
        assert all(len(piece) <= 700_000 for piece in reader.pieces(0, len(data)))


def test_an_empty_blob_has_no_pieces(blobs: BlobStore) -> None:
    name = input_name()
    blobs.put(name, b"")
    reader = blobs.open(name)
    assert (reader.size, list(reader.pieces(0, 0))) == (0, [])


def test_what_is_not_there_cannot_be_opened(blobs: BlobStore) -> None:
    with pytest.raises(Gone):
        blobs.open(input_name())


def test_a_file_that_is_being_read_stays_readable_when_it_is_deleted(tmp_path: Path) -> None:
    blobs, name, data = LocalBlobs(tmp_path), input_name(), os.urandom(600_000)
    blobs.put(name, data)
    pieces = (reader := blobs.open(name)).pieces(0, reader.size)
    first = next(pieces)
    blobs.delete_all([name])
    assert b"".join([first, *pieces]) == data


def test_a_repeated_put_never_shows_less_than_the_whole(blobs: BlobStore) -> None:
    name, data = input_name(), b"x" * 200_000
    blobs.put(name, data)
    with ThreadPoolExecutor(4) as threads:
        puts = [threads.submit(blobs.put, name, data) for _ in range(20)]
        assert {len(blobs.get(name)) for _ in range(50)} == {len(data)}
        assert [put.result() for put in puts] == [None] * 20
    assert [found for found, _ in blobs.names()] == [name]


def test_a_missing_blob_is_told_with_its_name(blobs: BlobStore) -> None:
    name, other = input_name(), input_name()
    blobs.put(other, b"x")
    for call in (blobs.get, lambda name: blobs.peek(name, 1)):
        with pytest.raises(Gone, match=f"blob {name} is not in"):
            call(name)
    found = blobs.readable([other, name])
    assert [file is not None for file in found] == [True, False]


def test_a_deleted_blob_is_gone_and_deleting_it_again_is_no_fault(blobs: BlobStore) -> None:
    names = [input_name() for _ in range(3)]
    blobs.put_all([(name, b"x") for name in names])
    blobs.delete_all([names[0]])
    blobs.delete_all([names[0]])
    assert blobs.readable(names[:1]) == [None]
    blobs.delete_all(names)
    blobs.delete_all([])
    assert list(blobs.names()) == []


@pytest.mark.parametrize(
    "name",
    [
        *("", "../etc/passwd", "/etc/passwd", "a/../b.in", "0" * 26 + ".in/../x", "0" * 26 + ".in\n", "STORE"),
        *("0" * 26 + ".in@../../ab.0.1.1.00000000", "0" * 26 + ".in@abcdabcd.0.1.1", "0" * 26 + ".in@abcdabcd.0.1.1.0000000\n"),
    ],
)
def test_a_name_that_could_leave_the_place_is_refused(blobs: BlobStore, name: str) -> None:
    for call in (
        blobs.get,
        lambda name: blobs.delete_all([name]),
        lambda name: blobs.readable([name]),
        lambda name: blobs.put(name, b""),
    ):
        with pytest.raises(InternalError, match="not a blob name"):
            call(name)


def test_names_tells_every_blob_with_its_age_and_nothing_else(blobs: BlobStore) -> None:
    names = [input_name() for _ in range(5)]
    blobs.put_all([(name, b"x") for name in names])
    assert blobs.belong_to("a")
    assert {name: -1.0 <= age_s < 60.0 for name, age_s in blobs.names()} == dict.fromkeys(names, True)


def test_a_pass_over_all_blobs_begins_once_in_a_while_whoever_asks(blobs: BlobStore) -> None:
    assert [blobs.begin_pass(600.0) for _ in range(3)] == [True, False, False]
    assert blobs.begin_pass(-60.0), "the last one is long enough ago"
    assert list(blobs.names()) == []


@pytest.mark.parametrize("ahead_s", [-7_200.0, 7_200.0])
def test_a_blob_is_as_old_as_the_clock_of_its_place_says(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, ahead_s: float
) -> None:
    """Regression: to a worker whose clock was an hour ahead, a blob looked orphaned before its record was written."""
    blobs.put(name := input_name(), b"x")
    monkeypatch.setattr(time, "time", lambda at=time.time: at() + ahead_s)
    assert {name: abs(age_s) < 60.0 for name, age_s in blobs.names()} == {name: True}


def test_the_first_store_that_asks_has_the_place_for_ever(opened: Open) -> None:
    assert opened().belong_to("first")
    assert not opened().belong_to("second")
    assert opened().belong_to("first")
