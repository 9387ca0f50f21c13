"""A file that grows at its end and can be cut back to any length that it once had."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.errors import InternalError

# Large enough that a commit's rows go to the system in few calls.
_BUFFER_BYTES = 1 << 20


@dataclass
class Appendable:
    path: Path
    _file: BinaryIO | None = field(default=None, repr=False)

    def append(self, data: bytes | memoryview) -> None:
        self._opened().write(data)

    def sync(self) -> int:
        """All that was appended survives a power cut now; the file's length in bytes."""
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        return file.tell()

    def cut(self, length: int) -> None:
        """Forget everything behind `length` bytes. Raises `InternalError` where there are fewer: they were synced once."""
        self.close()
        file = self._opened()
        held = file.seek(0, os.SEEK_END)
        if held < length:
            raise InternalError(f"{self.path} holds {held} bytes of {length} that were committed")
        file.truncate(length)
        file.seek(length)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._file = self.path.open("r+b" if self.path.exists() else "w+b", buffering=_BUFFER_BYTES)
            self._file.seek(0, os.SEEK_END)
        return self._file
