"""Files in which every line is a row: JSON Lines and plain text, also gzipped. A position is a byte offset.

An empty line is a row too, so that the output has as many lines as the input.
"""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import msgspec

from penstock.errors import InvalidInput
from penstock.runs import files
from penstock.runs.rows import RowError
from penstock.runs.sources.mapping import Mapping
from penstock.runs.sources.row_files import FileRows

BLOCK_BYTES = 1 << 20
MAX_LINE_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
# The bytes with which a JSON value can begin and end. If every line does both, no value spans two lines.
_BEGINS = frozenset(bytes([each]) for each in b'{["-0123456789tfn')
_ENDS = frozenset(bytes([each]) for each in b'}]"0123456789el')


@dataclass
class LineFile:
    """Whole lines of a file from any offset. Memory holds at most a block beyond the longest line. Offsets of a gzipped file
    refer to its text, so that seeking reads everything before them again. `end`: reading ends at this offset, which is after a
    line.
    """

    name: str
    max_line_bytes: int = MAX_LINE_BYTES
    end: int | None = None
    _file: BinaryIO | None = field(default=None, repr=False)
    _raw: BinaryIO | None = field(default=None, repr=False)
    _buffer: bytes = field(default=b"", repr=False)
    _start: int = 0
    _ended: bool = False

    def lines(self, offset: int, *, rows: int, size_bytes: int) -> tuple[list[bytes], int]:
        """Lines without their line ends, and the offset behind them; no line at the end of the file. A line over the limit is
        cut to the limit plus one byte.
        """
        self._go_to(offset)
        end = self._cut(offset - self._start, rows, size_bytes)
        if end is None:
            return self._overlong(offset)
        data = self._buffer[offset - self._start : end]
        return _split(data), self._start + end

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        # A GzipFile does not close the file that it reads from.
        if self._raw is not None:
            self._raw.close()
            self._raw = None

    def _cut(self, begin: int, rows: int, size_bytes: int) -> int | None:
        """The buffer offset behind the lines to return; None: a line does not end within the limit."""
        end = begin
        for _ in range(rows):
            line_end = self._line_end(end)
            if line_end is None:
                return None if end == begin else end
            if line_end == end or (end > begin and line_end - begin > size_bytes):
                return end
            # Reading more appends to the buffer, so that offsets in it stay valid.
            end = line_end
        return end

    def _line_end(self, begin: int) -> int | None:
        searched = begin
        while (newline := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched - begin > self.max_line_bytes:
                return None
            if not self._more():
                return searched
        return newline + 1 if newline - begin <= self.max_line_bytes else None

    def _overlong(self, offset: int) -> tuple[list[bytes], int]:
        begin = offset - self._start
        kept = self._buffer[begin : begin + self.max_line_bytes + 1]
        while (newline := self._buffer.find(b"\n", max(0, offset - self._start))) < 0:
            self._start += len(self._buffer)
            self._buffer = b""
            if not self._more():
                return [kept], self._start
        return [kept], self._start + newline + 1

    def _go_to(self, offset: int) -> None:
        file = self._open()
        if self._start <= offset <= self._start + len(self._buffer):
            # Drop whole blocks: dropping the lines of each call would copy the rest of the block each time.
            if offset - self._start >= BLOCK_BYTES:
                self._buffer, self._start = self._buffer[offset - self._start :], offset
            return
        file.seek(offset)
        self._buffer, self._start, self._ended = b"", offset, False

    def _more(self) -> bool:
        if self._ended:
            return False
        try:
            block = self._open().read(self._next_bytes())
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidInput(f"{self.name} is not a complete gzip file: {error}") from error
        self._ended = not block
        self._buffer += block
        return bool(block)

    def _next_bytes(self) -> int:
        left = BLOCK_BYTES if self.end is None else self.end - self._start - len(self._buffer)
        return max(0, min(BLOCK_BYTES, left))

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._raw = files.open_read(self.name)
            self._file = cast("BinaryIO", gzip.GzipFile(fileobj=self._raw)) if self.name.endswith(".gz") else self._raw
        return self._file


def _split(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


@dataclass
class JsonLines:
    """A file with one JSON value per line."""

    file: LineFile
    mapping: Mapping

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> FileRows | None:
        start = after or {"offset": 0, "line": 0}
        lines, end = self.file.lines(start["offset"], rows=rows, size_bytes=size_bytes)
        if not lines:
            return None
        if start["offset"] == 0:
            lines[0] = lines[0].removeprefix(_BOM)
        values, bad = self._decode(lines, start["line"])
        inputs, carried, missing = self.mapping.of_objects(values, bad)
        return FileRows(inputs, carried, missing, {"offset": end, "line": start["line"] + len(lines)})

    def count(self) -> int | None:
        return None

    def close(self) -> None:
        self.file.close()

    def _decode(self, lines: list[bytes], before: int) -> tuple[list[Any], dict[int, RowError]]:
        values = self._decode_all(lines)
        if values is not None:
            return values, {}
        values, bad = [], {}
        for place, line in enumerate(lines):
            value, error = self._decode_one(line, before + place + 1)
            values.append(value)
            if error is not None:
                bad[place] = error
        return values, bad

    def _decode_all(self, lines: list[bytes]) -> list[Any] | None:
        """All values at once, which is several times faster; None if lines have to be decoded one by one."""
        if not ({line[:1] for line in lines} <= _BEGINS and {line[-1:] for line in lines} <= _ENDS):
            return None
        try:
            values = self.mapping.decoder.decode_lines(b"\n".join(lines))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return values if len(values) == len(lines) else None

    def _decode_one(self, line: bytes, number: int) -> tuple[Any, RowError | None]:
        if len(line) > self.file.max_line_bytes:
            return None, RowError("too_large", f"line {number} is longer than {self.file.max_line_bytes} bytes")
        if not line.strip():
            return None, RowError("invalid_input", f"line {number} is empty")
        try:
            return self.mapping.decoder.decode(line), None
        except UnicodeDecodeError as error:
            return None, RowError("invalid_input", f"line {number} is not UTF-8: {error.reason} at byte {error.start}")
        except msgspec.ValidationError:
            return self._not_an_object(line, number)
        except (msgspec.MsgspecError, RecursionError) as error:
            return None, RowError("invalid_input", f"line {number} is not JSON: {error}")

    def _not_an_object(self, line: bytes, number: int) -> tuple[Any, RowError]:
        fault = "holds a number out of range" if self.mapping.whole else "is not a JSON object with columns"
        return None, RowError("invalid_input", f"line {number} {fault}")


@dataclass
class TextLines:
    """A file with one text per line; the row is the text without the line end."""

    file: LineFile

    def read(self, after: dict[str, Any] | None, *, rows: int, size_bytes: int) -> FileRows | None:
        start = after or {"offset": 0, "line": 0}
        lines, end = self.file.lines(start["offset"], rows=rows, size_bytes=size_bytes)
        if not lines:
            return None
        if start["offset"] == 0:
            lines[0] = lines[0].removeprefix(_BOM)
        texts, bad = [], {}
        for place, line in enumerate(lines):
            text, error = self._text(line, start["line"] + place + 1)
            texts.append(text)
            if error is not None:
                bad[place] = error
        return FileRows(texts, {}, bad, {"offset": end, "line": start["line"] + len(lines)})

    def count(self) -> int | None:
        return None

    def close(self) -> None:
        self.file.close()

    def _text(self, line: bytes, number: int) -> tuple[str | None, RowError | None]:
        if len(line) > self.file.max_line_bytes:
            return None, RowError("too_large", f"line {number} is longer than {self.file.max_line_bytes} bytes")
        try:
            return line.removesuffix(b"\r").decode(), None
        except UnicodeDecodeError as error:
            return None, RowError("invalid_input", f"line {number} is not UTF-8: {error.reason} at byte {error.start}")
