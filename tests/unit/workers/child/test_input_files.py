from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from penstock.job import Call
from penstock.workers.child.input_files import InputMissing, input_of, with_data
from penstock.workers.child.runner import run_batch
from penstock.workers.ipc.frames import Failed, Item, Output
from tests.unit.workers.child.test_runner import echo, model

PNG = "image/png"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "inputs"
    path.write_bytes(b"__first____second__")
    return path


def part(file: Path, offset: int, data: bytes) -> Item:
    return Item(PNG, path=str(file), call=Call.EXPLAIN, offset=offset, length=len(data), checksum=zlib.crc32(data))


def test_an_input_is_in_the_frame_or_a_file_or_a_part_of_one(file: Path) -> None:
    read = with_data([Item(PNG, b"small"), Item(PNG, path=str(file)), part(file, 2, b"first"), part(file, 11, b"second")])
    assert [item.data for item in read] == [b"small", b"__first____second__", b"first", b"second"]
    assert [(item.path, item.is_missing) for item in read] == [("", False)] * 4
    assert read[2].call is Call.EXPLAIN


def test_what_is_gone_damaged_or_cut_short_is_missing(file: Path) -> None:
    gone, elsewhere = file.with_name("gone"), part(file, 3, b"first")
    items = [Item(PNG, path=str(gone)), part(gone, 0, b"x"), elsewhere, part(file, 15, b"nd__more")]
    assert [(item.is_missing, item.data) for item in with_data(items)] == [(True, b"")] * 4
    for item in items:
        with pytest.raises(InputMissing):
            input_of(item)
    assert input_of(part(file, 11, b"second")) == b"second"


def test_an_input_that_is_missing_fails_alone(file: Path) -> None:
    there, missing = Item("application/json", b"1"), Item("application/json", path=str(file.with_name("gone")))
    done = run_batch(model(echo), with_data([there, missing, there]))
    assert [type(outcome) for outcome in done.outcomes] == [Output, Failed, Output]
    failed = done.outcomes[1]
    assert isinstance(failed, Failed)
    assert (failed.code, failed.retryable) == ("input_missing", False)
    assert "store.blob_dir" in failed.message
