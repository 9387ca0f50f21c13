"""The journal of one run, in its partial folder: how far source and sink are, one synced JSON line per commit.

A line that a crash cut short, and all behind it, is as if it had never been written.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from penstock.errors import Conflict, InternalError
from penstock.runs.files import sync_folder

NAME = "journal.jsonl"
_DIGITS = 8


class Header(Struct, frozen=True, kw_only=True):
    """What the run works on. A run is resumed over the same input, spec and model version only, unless it is told otherwise."""

    run_id: str
    spec_digest: str
    input: dict[str, Any]
    model: str
    version: str


class JournalEntry(Struct, frozen=True, kw_only=True):
    """`rows_done`: rows in the sink, failed ones included. `after` and `mark` are the source's and the sink's own."""

    rows_done: int
    failed: int
    after: dict[str, Any]
    mark: dict[str, Any]
    at: float


class Journal:
    """Use: `create` or `open`, then `append` after every commit of the sink, `close` at the end. One writer at a time."""

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

    def create(self, header: Header) -> None:
        """Begin anew; what was there is gone."""
        self._file = self.path.open("wb")
        self._header, self._last = header, None
        self._write(msgspec.json.encode(header))
        sync_folder(self.path.parent)

    def open(self) -> bool:
        """Go on behind the last whole entry; False where there is no journal, or none that got as far as its header."""
        if not self.path.exists():
            return False
        file = self.path.open("r+b")
        end = self._take_in(file)
        if self._header is None:
            file.close()
            return False
        file.truncate(end)
        file.seek(end)
        self._file = file
        return True

    def append(self, entry: JournalEntry) -> None:
        """Returns once the entry survives a power cut. The sink's `commit` comes first: a mark names what is on disk."""
        self._write(msgspec.json.encode(entry))
        self._last = entry

    def last(self) -> JournalEntry | None:
        return self._last

    def changed(self, now: Header) -> list[str]:
        """What differs between then and `now`, one sentence each; empty: the run may go on."""
        return _differences(self.header, now)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, body: bytes) -> None:
        if self._file is None:
            raise InternalError(f"the journal {self.path} is not open")
        self._file.write(b"%08x %s\n" % (zlib.crc32(body), body))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _take_in(self, file: BinaryIO) -> int:
        """Where the last whole entry ends."""
        end = 0
        for line in file:
            body = _body(line)
            if body is None:
                break
            if self._header is None:
                self._header = msgspec.json.decode(body, type=Header)
            else:
                self._last = msgspec.json.decode(body, type=JournalEntry)
            end += len(line)
        return end


def refuse_changed(changed: list[str]) -> None:
    """Raises `Conflict` naming every difference."""
    if changed:
        raise Conflict(
            f"the run cannot go on as it was: {'; '.join(changed)}",
            hint="start a new run, or resume with --accept-changes if the rows already written are still right",
        )


def _body(line: bytes) -> bytes | None:
    told, space, rest = line.partition(b" ")
    if not (line.endswith(b"\n") and space and len(told) == _DIGITS):
        return None
    body = rest[:-1]
    return body if told == b"%08x" % zlib.crc32(body) else None


def _differences(then: Header, now: Header) -> list[str]:
    found = []
    if then.spec_digest != now.spec_digest:
        found.append("its settings differ from those it started with")
    if (then.model, then.version) != (now.model, now.version):
        found.append(f"it started with {then.model} {then.version}, the model is now {now.model} {now.version}")
    if then.input != now.input:
        found.append(_input_difference(then.input, now.input))
    return found


def _input_difference(then: dict[str, Any], now: dict[str, Any]) -> str:
    """Sources tell one file each under `files`, or totals of a folder."""
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


def _totals(told: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in sorted(told.items()) if key != "files")
