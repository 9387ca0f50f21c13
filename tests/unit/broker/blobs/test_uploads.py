from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from penstock.broker.blobs.uploads import STRAY_S, FileRecord, FileStore, NewFile, plain_name
from penstock.errors import BadRequest, NotFound, TooLarge

NOW = 1_800_000_000.0


def stored(files: FileStore, data: bytes = b"abc", *, ttl_s: float = 0.0, name: str = "in.jsonl") -> FileRecord:
    upload = files.upload(NewFile("alice", name, "batch"), max_bytes=1_000, now=NOW)
    upload.write(data)
    return upload.finish(purpose="batch", filename=name, ttl_s=ttl_s)


def listed(files: FileStore) -> list[FileRecord]:
    return files.page("alice", limit=10, now=NOW).files


@pytest.fixture
def files(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files")


def test_a_file_is_found_with_its_content_and_its_record(files: FileStore) -> None:
    record = stored(files)
    assert files.find(record.id, now=NOW) == record
    assert files.content(record).read_bytes() == b"abc"
    assert (record.size_bytes, record.sha256) == (3, hashlib.sha256(b"abc").hexdigest())
    assert files.id_of(str(files.content(record))) == record.id
    assert listed(files) == [record]


@pytest.mark.parametrize("name", ["", "file-", "../../etc/passwd", "file-" + "0" * 25, "file-" + "A" * 26, "file-" + "/" * 26])
def test_what_is_no_id_of_ours_is_not_found_and_never_a_path(files: FileStore, name: str) -> None:
    with pytest.raises(NotFound):
        files.find(name, now=NOW)
    files.delete(name)
    assert files.id_of(name) == ""


def test_an_upload_over_its_limit_or_dropped_leaves_nothing(files: FileStore, tmp_path: Path) -> None:
    upload = files.upload(NewFile("alice", "a", "batch"), max_bytes=4, now=NOW)
    with pytest.raises(TooLarge, match="4 bytes"):
        upload.write(b"12345")
    upload.drop()
    empty = files.upload(NewFile("alice", "a", "batch"), max_bytes=4, now=NOW)
    with pytest.raises(BadRequest, match="empty"):
        empty.finish(purpose="batch", filename="a", ttl_s=0.0)
    empty.drop()
    assert [path for path in (tmp_path / "files").rglob("*") if path.is_file()] == []


def test_an_upload_is_not_seen_before_it_is_whole(files: FileStore) -> None:
    upload = files.upload(NewFile("alice", "a", "batch"), max_bytes=10, now=NOW)
    upload.write(b"1")
    assert listed(files) == []
    upload.drop()


def test_what_has_expired_is_not_found_and_then_swept(files: FileStore) -> None:
    short, long = stored(files, ttl_s=60.0), stored(files)
    assert files.find(short.id, now=NOW + 59).expires_at == NOW + 60
    with pytest.raises(NotFound):
        files.find(short.id, now=NOW + 60)
    assert files.sweep(now=NOW + 60) == 1
    assert not files.content(short).parent.exists()
    assert files.find(long.id, now=NOW + 1e9) == long


def test_an_upload_that_was_cut_off_is_swept_after_a_day(files: FileStore, tmp_path: Path) -> None:
    upload = files.upload(NewFile("alice", "a", "batch"), max_bytes=10, now=NOW)
    upload._file.close()
    [home] = (tmp_path / "files").glob("*/*")
    at = home.stat().st_mtime
    assert files.sweep(now=at + STRAY_S - 1) == 0
    assert files.sweep(now=at + STRAY_S + 1) == 1


def test_a_file_that_a_run_is_to_write_is_there_from_the_moment_it_is_written(files: FileStore) -> None:
    path = files.reserve(NewFile("alice", "r.output.jsonl", "batch_output", 60.0), now=NOW)
    file_id = files.id_of(str(path))
    with pytest.raises(NotFound):
        files.find(file_id, now=NOW)
    path.write_bytes(b"12345")
    written_at = path.stat().st_mtime
    found = files.find(file_id, now=written_at)
    assert (found.size_bytes, found.created_at, found.expires_at) == (5, written_at, written_at + 60.0)
    assert found.filename == "r.output.jsonl"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("../../a.jsonl", "a.jsonl"), ("C:\\x\\b.csv", "b.csv"), ("a\r\nb", "ab"), ("", "file"), ("x" * 300, "x" * 200)],
)
def test_a_name_is_shown_without_folders_and_line_breaks(given: str, kept: str) -> None:
    assert plain_name(given) == kept
