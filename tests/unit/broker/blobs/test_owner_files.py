"""Lists of files: by owner, in pages, and from entries that are made anew where they are missing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.broker.blobs import uploads
from penstock.broker.blobs.owner_files import FOLDER
from penstock.broker.blobs.space import FileCensus, FileUsage
from penstock.broker.blobs.uploads import FileRecord, FileStore, NewFile

NOW = 1_800_000_000.0


class CountingFiles(FileStore):
    """Counts the records that are read from the disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.read = 0

    def _read(self, home: Path) -> FileRecord | None:
        self.read += 1
        return super()._read(home)


@pytest.fixture
def files(tmp_path: Path) -> CountingFiles:
    return CountingFiles(tmp_path / "files")


def stored(files: FileStore, owner: str, *, purpose: str = "batch", ttl_s: float = 0.0) -> str:
    upload = files.upload(NewFile(owner, "a", purpose), max_bytes=10, now=NOW)
    upload.write(b"abc")
    return upload.finish(purpose=purpose, filename="a", ttl_s=ttl_s).id


def ids(files: FileStore, owner: str | None, purpose: str | None = None) -> list[str]:
    return [record.id for record in files.page(owner, purpose=purpose, limit=100, newest=False, now=NOW).files]


def test_a_list_and_a_count_read_no_other_owners_records(files: CountingFiles) -> None:
    """Regression: each list and each first count read every record of every owner."""
    for _ in range(40):
        stored(files, "ann")
    own = [stored(files, "bob") for _ in range(3)]
    assert ids(files, "bob") == own
    files.read = 0
    assert ids(files, "bob") == own
    assert files.read == 3
    census = FileCensus(files)
    assert census.usage("bob") == FileUsage(3, 9)
    assert files.read == 6
    assert ids(files, "bob", "vision") == []
    assert files.read == 6


def test_a_page_reads_no_more_than_it_shows(files: CountingFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [stored(files, "ann") for _ in range(7)]
    ids(files, "ann")
    files.read = 0
    page = files.page("ann", limit=3, now=NOW)
    found = [record.id for record in page.files]
    while page.next_after:
        page = files.page("ann", after=page.next_after, limit=3, now=NOW)
        found += [record.id for record in page.files]
    assert found == made[::-1]
    assert files.read == 7
    monkeypatch.setattr(uploads, "MOST_SHOWN", 2)
    assert [record.id for record in files.page("ann", limit=10_000, now=NOW).files] == made[:-3:-1]


def test_a_page_goes_on_behind_a_file_that_is_gone(files: CountingFiles) -> None:
    """OpenAI's client may delete each file of a page before it asks for the next page."""
    first, second, third = (stored(files, "ann") for _ in range(3))
    files.delete(second)
    assert [record.id for record in files.page("ann", after=second, limit=9, now=NOW).files] == [first]
    assert [record.id for record in files.page("ann", after=second, limit=9, newest=False, now=NOW).files] == [third]


def test_a_page_reads_a_bounded_number_of_files_that_it_does_not_show(
    files: CountingFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MOST_READ", 4)
    shown = stored(files, "ann")
    for _ in range(5):
        files.reserve(NewFile("ann", "out", "batch_output"), now=NOW)
    page = files.page("ann", limit=2, now=NOW)
    assert (page.files, bool(page.next_after)) == ([], True)
    assert [record.id for record in files.page("ann", after=page.next_after, limit=2, now=NOW).files] == [shown]


def test_files_that_were_stored_before_there_were_lists_are_shown(files: CountingFiles, tmp_path: Path) -> None:
    kept = [stored(files, "ann"), stored(files, "ann", purpose="vision")]
    others = stored(files, "bob")
    shutil.rmtree(tmp_path / "files" / FOLDER)
    found = CountingFiles(tmp_path / "files")
    assert ids(found, "ann") == kept
    assert ids(found, "bob") == [others]
    assert ids(found, None) == [*kept, others]
    assert FileCensus(CountingFiles(tmp_path / "files")).usage("ann") == FileUsage(2, 6)


def test_what_a_gateway_of_an_earlier_version_stores_and_deletes_is_found_by_the_sweep(
    files: CountingFiles, tmp_path: Path
) -> None:
    gone, kept = stored(files, "ann"), stored(files, "ann")
    assert ids(files, "ann") == [gone, kept]
    [entry] = (tmp_path / "files" / FOLDER).glob(f"*/{kept}.*")
    entry.unlink()
    shutil.rmtree(files.content(files.find(gone, now=NOW)).parent)
    assert ids(files, "ann") == []
    assert not list((tmp_path / "files" / FOLDER).glob(f"*/{gone}.*"))
    files.sweep(now=NOW)
    assert ids(files, "ann") == [kept]


def test_what_has_ended_leaves_the_list(files: CountingFiles, tmp_path: Path) -> None:
    short, deleted = stored(files, "ann", ttl_s=60.0), stored(files, "ann")
    files.delete(deleted)
    assert ids(files, "ann") == [short]
    assert files.page("ann", limit=9, now=NOW + 60).files == []
    files.sweep(now=NOW + 60)
    assert [path.name for path in (tmp_path / "files" / FOLDER).rglob("*") if path.is_file()] == ["whole"]
