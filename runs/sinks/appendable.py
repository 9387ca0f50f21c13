"""A file that grows at its end and can be cut back to any earlier length."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.errors import InternalError

# Large enough to write the rows of a commit in few system calls.
_BUFFER_BYTES = 1 << 20


@dataclass
class Appendable:
    path: Path
    _file: BinaryIO | None = field(default=None, repr=False)

    def append(self, data: bytes | memoryview) -> None:
        self._open().write(data)

    def sync(self) -> int:
        """Make everything appended survive a power cut; returns the file's length in bytes."""
        file = self._open()
        file.flush()
        os.fsync(file.fileno())
        return file.tell()

    def cut(self, length: int) -> None:
        """Drop everything behind `length` bytes. Raises `InternalError` if the file is shorter, although it was synced at that
        length.
        """
        self.close()
        file = self._open()
        length_now = file.seek(0, os.SEEK_END)
        if length_now < length:
            raise InternalError(f"{self.path} has only {length_now} of the {length} bytes that were committed")
        file.truncate(length)
        file.seek(length)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._file = self.path.open("r+b" if self.path.exists() else "w+b", buffering=_BUFFER_BYTES)
            self._file.seek(0, os.SEEK_END)
        return self._file
