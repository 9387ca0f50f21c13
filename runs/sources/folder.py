"""A folder or glob: every file is a row; its content is the input, its path can be carried."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.errors import InvalidInput, NotFound
from penstock.run import RunPart
from penstock.runs import files
from penstock.runs.rows import RowBatch, RowError
from penstock.runs.sources.row_files import BYTES_MEDIA, JSON_MEDIA

MAX_FILE_BYTES = 64 << 20
PATH = "path"
TEXT_SUFFIXES = (".txt", ".md", ".text")


@dataclass
class FolderSource:
    """The files `names`, in that order, or those of the `part`. Text files become JSON strings; others are bytes of one media
    type: that of their suffixes, if all agree. Memory holds the names and one batch of files.
    """

    names: list[str]
    carry: tuple[str, ...] = ()
    max_file_bytes: int = MAX_FILE_BYTES
    first_line: int | None = None
    part: RunPart | None = None
    media: str = field(init=False)

    def __post_init__(self) -> None:
        self.media = _media(self.names)
        foreign = [name for name in self.carry if name != PATH]
        if foreign:
            raise InvalidInput(f"files in a folder have no column {foreign[0]!r}", hint=f"their only column is {PATH!r}")

    def of_part(self, part: RunPart) -> FolderSource:
        """The same input, limited to this part. Rows are numbered from 0 in the part."""
        return replace(self, part=part)

    @property
    def _own(self) -> list[str]:
        return self.names[self.part.first : self.part.stop] if self.part else self.names

    def identity(self) -> dict[str, Any]:
        digest, total = hashlib.sha256(), 0
        for name in self._own:
            facts = files.stat(name)
            total += facts.size_bytes
            digest.update(f"{name}\0{facts.size_bytes}\0{facts.changed}\n".encode("utf-8", "surrogateescape"))
        return {"count": len(self._own), "bytes": total, "listing": digest.hexdigest()}

    def count(self) -> int | None:
        return len(self._own)

    def share_before(self, after: dict[str, Any] | None) -> float | None:
        return after["row"] / len(self._own) if after and self._own else None

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> RowBatch | None:
        first = after["row"] if after else 0
        inputs: list[Any] = []
        paths: list[str] = []
        bad: dict[int, RowError] = {}
        taken = 0
        for name in self._own[first : first + rows]:
            value, error = self._row(name)
            paths.append(_shown(name))
            if error is not None:
                bad[len(inputs)] = error
            inputs.append(value)
            taken += len(value or b"")
            if taken >= size_bytes:
                break
        if not inputs:
            return None
        behind = first + len(inputs)
        return RowBatch(first, inputs, {PATH: paths}, {"row": behind}, bad)

    def close(self) -> None:
        """No file stays open between reads."""

    def _row(self, name: str) -> tuple[bytes | str | None, RowError | None]:
        try:
            with files.open_read(name) as file:
                data = file.read(self.max_file_bytes + 1)
        except (OSError, NotFound) as error:
            return None, RowError("unreadable", f"{_shown(name)} cannot be read: {_shown(str(error))}")
        if len(data) > self.max_file_bytes:
            return None, RowError("too_large", f"{_shown(name)} is larger than {self.max_file_bytes} bytes")
        if self.media != JSON_MEDIA:
            return data, None
        try:
            return data.decode("utf-8-sig"), None
        except UnicodeDecodeError as error:
            return None, RowError("invalid_input", f"{_shown(name)} is not UTF-8: {error.reason} at byte {error.start}")


def _shown(name: str) -> str:
    """The name as text that can be written as UTF-8, which names of files need not be."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _media(names: list[str]) -> str:
    if all(name.lower().endswith(TEXT_SUFFIXES) for name in names):
        return JSON_MEDIA
    types = {mimetypes.guess_type(name)[0] for name in names}
    only = types.pop() if len(types) == 1 else None
    return only if only is not None and only != JSON_MEDIA else BYTES_MEDIA
