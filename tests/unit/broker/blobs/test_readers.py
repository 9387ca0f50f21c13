from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.blobs.readers import BlobReader, BytesReader, FileReader, JoinedReader, SliceReader


def read(reader: BlobReader, start: int, end: int) -> bytes:
    return b"".join(reader.pieces(start, end))


@given(st.lists(st.binary(max_size=8), max_size=5), st.integers(0, 40), st.integers(0, 40))
def test_joined_readers_read_as_one(parts: list[bytes], first: int, length: int) -> None:
    whole = b"".join(parts)
    start = min(first, len(whole))
    end = min(start + length, len(whole))
    joined = JoinedReader([BytesReader(part) for part in parts])
    assert joined.size == len(whole)
    assert read(joined, start, end) == whole[start:end]


def test_a_slice_is_counted_from_its_own_start(tmp_path: Path) -> None:
    data = os.urandom(600_000)
    (tmp_path / "blob").write_bytes(data)
    part = SliceReader(FileReader(tmp_path / "blob"), 1_000, 500_000)
    assert part.size == 499_000
    assert read(part, 0, part.size) == data[1_000:500_000]
    assert read(part, 10, 20) == data[1_010:1_020]


def test_a_file_is_closed_with_its_reader(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"x")
    before = os.listdir("/proc/self/fd")
    reader = FileReader(tmp_path / "blob")
    pieces = reader.pieces(0, 1)
    assert next(pieces) == b"x"
    del reader, pieces
    assert len(os.listdir("/proc/self/fd")) == len(before)
