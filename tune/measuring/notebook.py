"""The measurements of a search, one JSON line each, so that the next search need not repeat them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil

from penstock.errors import BadRequest
from penstock.loadtest.generator.connection import RequestBody

T = TypeVar("T")
_ABOUT = "about"


class _NotebookLine(msgspec.Struct):
    kind: str
    key: str
    value: msgspec.Raw


# Made while one thread loads this module: D106.
_LINE = msgspec.json.Decoder(_NotebookLine)


class Notebook:
    """With a `path`, each entry is written to the file at once; without one, entries last as long as the search."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: dict[tuple[str, str], msgspec.Raw] = {}

    def open(self, about: str) -> int:
        """Reads the file; returns the number of entries. Raises `BadRequest` if it is unreadable or about another model."""
        if self._path is None:
            return 0
        if self._path.exists():
            self._read(self._path)
        mine = self.get(_ABOUT, "", str)
        if mine is not None and mine != about:
            raise BadRequest(
                f"{self._path} was written for another model, other inputs or another machine",
                hint="name another file with --resume, or delete this one",
            )
        if mine is None:
            self.put(_ABOUT, "", about)
        return len(self._entries) - 1

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().splitlines()
        except OSError as fault:
            raise BadRequest(f"{path} cannot be read: {fault.strerror}", hint="name another file with --resume") from fault
        for number, line in enumerate(lines, 1):
            try:
                entry = _LINE.decode(line)
            except msgspec.DecodeError as fault:
                if number == len(lines):
                    # The search was killed while it wrote the last line. That measurement is repeated.
                    return
                raise BadRequest(f"line {number} of {path} is not an entry: {fault}", hint="delete the file") from fault
            self._entries[entry.kind, entry.key] = entry.value

    def get(self, kind: str, key: str, type_: type[T]) -> T | None:
        entry = self._entries.get((kind, key))
        return None if entry is None else msgspec.json.decode(entry, type=type_)

    def put(self, kind: str, key: str, value: Any) -> None:
        raw = msgspec.Raw(msgspec.json.encode(value))
        self._entries[kind, key] = raw
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(_NotebookLine(kind, key, raw)) + b"\n")


@dataclass(frozen=True, slots=True)
class SearchSubject:
    """Facts that must be equal to reuse measurements."""

    model: str
    table: Mapping[str, Any]
    inputs: Sequence[RequestBody]

    def digest(self) -> str:
        source = Path(str(self.table.get("source", "")).partition(":")[0])
        parts = [self.model.encode(), msgspec.json.encode(dict(self.table), order="sorted"), str(psutil.cpu_count()).encode()]
        parts += [source.read_bytes()] if source.is_file() else []
        parts += [part for body in self.inputs for part in (body.content_type.encode(), body.data)]
        whole = hashlib.sha256()
        for part in parts:
            whole.update(len(part).to_bytes(8, "big") + part)
        return whole.hexdigest()


def key_of(value: Any) -> str:
    """A key that is equal for equal records."""
    return msgspec.json.encode(value).decode()
