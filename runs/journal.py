"""The journal of one run, in its partial folder: the state of source and sink, one synced JSON line per commit.

A run resumes from the journal, not from the record in the store (D42). A line that a crash cut short is ignored, and so is
everything after it.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from penstock.errors import Conflict, InternalError
from penstock.run import RunPart
from penstock.runs.files import sync_folder

log = logging.getLogger("penstock.runs")

# D42: docs/design/runs.md
NAME = "journal.jsonl"
_DIGITS = 8
# The errors of a file system without locks.
_NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Header(Struct, frozen=True, kw_only=True):
    """What the run works on. Unless the user accepts changes, a run resumes only over the same input, spec and version."""

    run_id: str
    spec_digest: str
    input: dict[str, Any]
    model: str
    version: str


class JournalEntry(Struct, frozen=True, kw_only=True):
    """`rows_done`: rows in the sink, failed ones included. Only the source understands `after`, only the sink `mark`."""

    rows_done: int
    failed: int
    after: dict[str, Any]
    mark: dict[str, Any]
    at: float


# Made while one thread loads this module: D106.
_HEADER, _ENTRY = msgspec.json.Decoder(Header), msgspec.json.Decoder(JournalEntry)


class Journal:
    """Call `create` or `open`, then `append` after every commit of the sink, at the end `close`.

    A lock on the file ensures one writer at a time: an earlier driver that is frozen or cut off, but not dead, may wake up
    at any step (D55). The lock also guards the sink and the publication: take it first, release it last.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header: Header | None = None
        self._last: JournalEntry | None = None
        self._file: BinaryIO | None = None

    @property
    def header(self) -> Header:
        if self._header is None:
            raise InternalError(f"the journal {self.path} was not opened")
        return self._header

    def acquire(self) -> bool:
        """Become the journal's writer; False if another process is."""
        while self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
            if not _lock(file, self.path):
                file.close()
                return False
            if os.fstat(file.fileno()).st_nlink:
                self._file = file
            else:
                # Its last writer has published the output and removed the journal.
                file.close()
        return True

    def create(self, header: Header) -> None:
        """Begin a new journal; an older one is lost. Raises `Conflict` if another process writes it."""
        file = self._hold()
        file.seek(0)
        file.truncate()
        self._header, self._last = header, None
        self._write(msgspec.json.encode(header))
        sync_folder(self.path.parent)

    def open(self) -> bool:
        """Continue after the last complete entry; False without a journal that has a complete header.

        Raises `Conflict` if another process writes the journal.
        """
        file = self._hold()
        file.seek(0)
        end = self._load(file)
        if self._header is None:
            return False
        file.truncate(end)
        file.seek(end)
        return True

    def append(self, entry: JournalEntry) -> None:
        """Returns once the entry survives a power cut. Call the sink's `commit` first: the mark describes what is on disk."""
        self._write(msgspec.json.encode(entry))
        self._last = entry

    def last(self) -> JournalEntry | None:
        return self._last

    def changed(self, now: Header) -> list[str]:
        """The differences between the header and `now`, one sentence each; empty: the run may resume."""
        return _differences(self.header, now)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _hold(self) -> BinaryIO:
        if not self.acquire() or self._file is None:
            raise Conflict(f"another process writes {self.path}", hint="end it, or wait until it has ended")
        return self._file

    def _write(self, body: bytes) -> None:
        if self._file is None:
            raise InternalError(f"the journal {self.path} is not open")
        self._file.write(b"%08x %s\n" % (zlib.crc32(body), body))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _load(self, file: BinaryIO) -> int:
        """Read all whole entries; returns the offset behind the last one."""
        end = 0
        for line in file:
            body = _body(line)
            if body is None:
                break
            if self._header is None:
                self._header = _HEADER.decode(body)
            else:
                self._last = _ENTRY.decode(body)
            end += len(line)
        return end


def refuse_changed(changed: list[str]) -> None:
    """Raises `Conflict` naming every difference."""
    if changed:
        raise Conflict(
            f"the run cannot resume: {'; '.join(changed)}",
            hint="start a new run, or resume with --accept-changes if the rows already written are still valid",
        )


def _lock(file: BinaryIO, path: Path) -> bool:
    """Lock the file until it is closed or this process ends; False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        # Only the lease then prevents a second driver.
        log.warning("journal_not_locked", extra={"path": str(path), "error": str(error)})
    return True


def _body(line: bytes) -> bytes | None:
    checksum, space, rest = line.partition(b" ")
    if not (line.endswith(b"\n") and space and len(checksum) == _DIGITS):
        return None
    body = rest[:-1]
    return body if checksum == b"%08x" % zlib.crc32(body) else None


def _differences(then: Header, now: Header) -> list[str]:
    differences = []
    if then.spec_digest != now.spec_digest:
        differences.append("its settings differ from those at its start")
    if (then.model, then.version) != (now.model, now.version):
        differences.append(f"it started with {then.model} {then.version}, the model is now {now.model} {now.version}")
    if _typed(then.input) != _typed(now.input):
        differences.append(_input_difference(then.input, now.input))
    return differences


def _typed(identity: dict[str, Any]) -> dict[str, Any]:
    """With the part as a record, in which a member that one of two trees does not know has its default."""
    return identity | {"part": msgspec.convert(identity["part"], RunPart)} if "part" in identity else identity


def _input_difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    """A source's identity lists files under `files`, or holds the totals of a folder."""
    old = {each["name"]: each for each in then.get("files", [])}
    new = {each["name"]: each for each in now.get("files", [])}
    differing = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if not differing:
        return f"the input changed: then {_totals(then)}, now {_totals(now)}"
    name, more = differing[0], f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    if name not in new:
        return f"the input file {name}{more} is no longer there"
    if name not in old:
        return f"the input file {name}{more} is new"
    sizes = f" from {old[name]['bytes']} to {new[name]['bytes']} bytes" if old[name]["bytes"] != new[name]["bytes"] else ""
    return f"the input file {name}{more} changed{sizes} since the run started"


def _totals(identity: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(identity.items()) if key != "files")
