"""Files that callers upload and runs produce. Each file has a folder on the shared disk with its content and its record."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from penstock.broker.blobs.durable_files import sync_folder
from penstock.broker.blobs.files import folder_now
from penstock.broker.blobs.owner_files import OwnerFiles
from penstock.errors import BadRequest, NotFound, StoreUnavailable, TooLarge
from penstock.job import new_serial

# Ids become parts of paths, so an id of any other form is refused.
_ID = re.compile(r"file-[0-9a-hjkmnp-tv-z]{26}")
_RECORD = "record.json"
_CONTENT = "content"
_TAKEN_MODE = 0o700
MAX_NAME = 200
# A page shows at most so many files. It reads at most so many records, some of which may be of files that are not written yet.
MOST_SHOWN = 1_000
MOST_READ = 2_000
# After this time a folder without a record, as an aborted upload leaves one, is removed.
STRAY_S = 24 * 3600.0
# After this time a record without content is removed; no run takes so long, and the record of a run is gone by then.
UNWRITTEN_S = 90 * 86_400.0


class FileRecord(Struct, frozen=True, kw_only=True):
    """The record of one file. Moments are Unix seconds by the file system's clock. `suffix` is the suffix of the content's
    name on disk.

    The record of a file that a run writes exists before the content. Such a file is listed once the content is in place, and
    `size_bytes` and `created_at` are then read from the content. The file is kept for `ttl_s` after `created_at` (0: for ever).
    """

    id: str
    owner: str
    filename: str
    purpose: str
    suffix: str = ""
    size_bytes: int = 0
    created_at: float = 0.0
    ttl_s: float = 0.0
    sha256: str = ""
    produced: bool = False
    # The uploader's own words on the file.
    metadata: dict[str, Any] = {}

    @property
    def expires_at(self) -> float | None:
        return self.created_at + self.ttl_s if self.ttl_s else None


# Made while one thread loads this module: D106.
_FILE_RECORD = msgspec.json.Decoder(FileRecord)


@dataclass(frozen=True, slots=True)
class NewFile:
    """What a caller declares about a file to be stored."""

    owner: str
    filename: str
    purpose: str
    ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FilePage:
    """`next_after`: the id behind which the list goes on; empty at its end."""

    files: list[FileRecord]
    next_after: str = ""


class FileStore:
    """Files below one folder, which gateways and runners share. Every method blocks, so an event loop calls it in a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owners = OwnerFiles(folder)

    def now(self) -> float:
        """The clock of the file system, which dates what runs write here. `now` of the other methods is a moment of it."""
        return folder_now(self._folder)

    def upload(self, new: NewFile, *, max_bytes: int, now: float) -> Upload:
        """Begin an upload, which is then written in pieces. Raises `StoreUnavailable` if the disk cannot take a file."""
        record = FileRecord(
            id=_new_id(),
            owner=new.owner,
            filename=plain_name(new.filename),
            purpose=new.purpose,
            suffix=_suffix(new.filename),
            created_at=now,
            ttl_s=new.ttl_s,
        )
        try:
            self._home(record.id).mkdir(parents=True, mode=_TAKEN_MODE)
            return Upload(self, record, max_bytes=max_bytes)
        except OSError as fault:
            raise _unwritable(fault) from fault

    def reserve(self, new: NewFile, *, now: float) -> Path:
        """Record a file that a run is going to write, and return the path for its content. The file is listed once the content
        exists.
        """
        record = FileRecord(
            id=_new_id(),
            owner=new.owner,
            filename=plain_name(new.filename),
            purpose=new.purpose,
            suffix=_suffix(new.filename),
            created_at=now,
            ttl_s=new.ttl_s,
            produced=True,
        )
        try:
            self._home(record.id).mkdir(parents=True, mode=_TAKEN_MODE)
            self.keep(record)
        except OSError as fault:
            raise _unwritable(fault) from fault
        return self.content(record)

    def keep(self, record: FileRecord) -> None:
        """Write the record atomically."""
        home = self._home(record.id)
        beside = home / f"{_RECORD}.new"
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(home / _RECORD)
        sync_folder(home)
        sync_folder(home.parent)
        if self._owners.add(record.owner, record.id, record.purpose):
            self._owners.sync(record.owner)

    def find(self, file_id: str, *, now: float) -> FileRecord:
        """Return the record of a file; raises `NotFound` if its content is missing or has expired."""
        record = self._read(self._home(file_id)) if _ID.fullmatch(file_id) else None
        shown = self._as_it_is(record) if record else None
        if shown is None or _expired(shown, now):
            raise NotFound(f"there is no file {file_id[:80]!r}", hint="GET /v1/files lists yours.")
        return shown

    def page(
        self, owner: str | None, *, purpose: str | None = None, after: str = "", limit: int, newest: bool = True, now: float
    ) -> FilePage:
        """The files of an owner (None: of all) behind the id `after` whose content exists and has not expired, by their ids.

        `after` is a place among the ids, whether there is such a file or not: it may have been deleted since.
        """
        ids = self.ids(owner, purpose, now=now)
        before = bisect_left(ids, after) if after else len(ids)
        ordered = ids[:before][::-1] if newest else ids[bisect_right(ids, after) :]
        shown: list[FileRecord] = []
        for read, file_id in enumerate(ordered):
            if len(shown) == min(limit, MOST_SHOWN) or read == MOST_READ:
                return FilePage(shown, ordered[read - 1])
            shown += self._shown(file_id, owner, now)
        return FilePage(shown)

    def _shown(self, file_id: str, owner: str | None, now: float) -> list[FileRecord]:
        record = self._read(self._home(file_id))
        if record is None and owner is not None:
            self._owners.drop(owner, file_id)
        shown = self._as_it_is(record) if record else None
        is_theirs = shown is not None and owner in (None, shown.owner)
        return [shown] if shown is not None and is_theirs and not _expired(shown, now) else []

    def ids(self, owner: str | None, purpose: str | None = None, *, now: float) -> list[str]:
        """The ids of an owner's files (None: of all owners'), the oldest first, also of those that are being written."""
        if not self._owners.is_whole():
            self.sweep(now=now)
        return self._owners.ids(owner, purpose)

    def content(self, record: FileRecord) -> Path:
        return self._home(record.id) / (_CONTENT + record.suffix)

    def id_of(self, path: str) -> str:
        """Return the id of the file whose content has this path; empty for any other path."""
        home = Path(path).parent
        return home.name if _ID.fullmatch(home.name) and home.parent.parent == self._folder else ""

    def delete(self, file_id: str) -> None:
        """Delete a file; a missing file is no error."""
        if _ID.fullmatch(file_id):
            self._remove(self._home(file_id))

    def _remove(self, home: Path) -> None:
        if (record := self._read(home)) is not None:
            self._owners.discard(record.owner, record.id, record.purpose)
        shutil.rmtree(home, ignore_errors=True)

    def sweep(self, *, now: float) -> int:
        """Remove expired files and aborted uploads, and list files that no list has yet; returns how many were removed."""
        gone, listed = 0, set[str]()
        for home in self._homes():
            record = self._read(home)
            if record is None:
                old = _age_s(home, now) > STRAY_S
            else:
                shown = self._as_it_is(record)
                old = _expired(shown, now) if shown is not None else record.created_at + UNWRITTEN_S <= now
            if old:
                self._remove(home)
                gone += 1
            elif record is not None and self._owners.add(record.owner, record.id, record.purpose):
                listed.add(record.owner)
        for owner in listed:
            self._owners.sync(owner)
        self._owners.note_whole()
        return gone

    def _as_it_is(self, record: FileRecord) -> FileRecord | None:
        if not record.produced:
            return record
        try:
            stat = self.content(record).stat()
        except FileNotFoundError:
            return None
        return msgspec.structs.replace(record, size_bytes=stat.st_size, created_at=stat.st_mtime)

    def _read(self, home: Path) -> FileRecord | None:
        try:
            return _FILE_RECORD.decode((home / _RECORD).read_bytes())
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None

    def _homes(self) -> Iterator[Path]:
        for folder in sorted(self._folder.glob("[0-9a-z][0-9a-z]")):
            yield from (home for home in sorted(folder.iterdir()) if _ID.fullmatch(home.name))

    def _home(self, file_id: str) -> Path:
        # The end of an id is random while its beginning is a time, so sorting files by the end keeps every folder small.
        return self._folder / file_id[-2:] / file_id


class Upload:
    """A file while its content is written. `write` raises `TooLarge` over the limit; call `drop` to abandon the upload."""

    def __init__(self, files: FileStore, record: FileRecord, *, max_bytes: int) -> None:
        self._files = files
        self._record = record
        self._max_bytes = max_bytes
        self._size = 0
        self._hash = hashlib.sha256()
        self._file = files.content(record).open("xb")

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._max_bytes:
            raise TooLarge(
                f"the file has more than {self._max_bytes} bytes, the most that this gateway keeps",
                hint="Split it, or raise runs.max_file_bytes.",
            )
        self._hash.update(data)
        try:
            self._file.write(data)
        except OSError as fault:
            raise _unwritable(fault) from fault

    def finish(self, *, purpose: str, filename: str, ttl_s: float, metadata: dict[str, Any] | None = None) -> FileRecord:
        """Store the file durably. The form may send its other fields after the content, so they are passed here."""
        if not self._size:
            raise BadRequest("the file is empty")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            record = msgspec.structs.replace(
                self._record,
                purpose=purpose,
                filename=plain_name(filename),
                ttl_s=ttl_s,
                metadata=metadata or {},
                size_bytes=self._size,
                sha256=self._hash.hexdigest(),
            )
            self._files.keep(record)
        except OSError as fault:
            raise _unwritable(fault) from fault
        return record

    def drop(self) -> None:
        self._file.close()
        self._files.delete(self._record.id)


def is_file_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def plain_name(name: str) -> str:
    """Return the caller's file name without folders and control characters. The name is only shown, never opened."""
    last = name.replace("\\", "/").rpartition("/")[2]
    return "".join(letter for letter in last if letter.isprintable())[:MAX_NAME] or "file"


def _suffix(name: str) -> str:
    suffix = Path(plain_name(name)).suffix.lower()
    return suffix if re.fullmatch(r"\.[a-z0-9]{1,8}", suffix) else ""


def _new_id() -> str:
    return f"file-{new_serial()}"


def _expired(record: FileRecord, now: float) -> bool:
    return record.expires_at is not None and record.expires_at <= now


def _age_s(path: Path, now: float) -> float:
    try:
        return now - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _unwritable(fault: OSError) -> StoreUnavailable:
    return StoreUnavailable(f"a file cannot be written: {fault.strerror}")
