"""Reads of an HTTP/1.1 answer what a load generator needs: status, headers, end, and the first bytes of the body."""

from __future__ import annotations

_UNTIL_CLOSE = -1  # the answer has no length: it ends with the connection
_CHUNKED = -2
_KEPT_BYTES = 2_000


class UnreadableAnswer(Exception):
    """The server sent something that is not an HTTP answer; the connection is closed and counts as lost."""


class AnswerReader:
    """Reads one answer at a time. Of bodies it keeps only the first bytes."""

    __slots__ = ("_chunks", "_lower", "_missing", "_part", "body", "closes", "head", "status")

    def __init__(self) -> None:
        self._part = b""
        self._lower = b""
        self._missing = 0
        self._chunks = ChunkReader()
        self.status = 0
        self.closes = False
        self.head = b""
        self.body = b""

    def feed(self, data: bytes) -> bool:
        """True when `data` completes the answer; then `status`, `closes`, `header()` and `body` (its first bytes) are valid."""
        if self._missing == 0:
            return self._feed_head(data)
        return self._feed_body(data)

    def ends_with_connection(self) -> bool:
        return self._missing == _UNTIL_CLOSE

    def header(self, name: bytes) -> bytes:
        """The value of a header by its lower-case name; empty: the answer has no such header."""
        at = self._lower.find(b"\r\n" + name + b":")
        if at < 0:
            return b""
        begin = at + len(name) + 3
        return self.head[begin : self._lower.find(b"\r\n", begin)].strip()

    def _feed_head(self, data: bytes) -> bool:
        if self._part:
            data = self._part + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._part = data
            return False
        self._part = b""
        self.head, self.body = data[: end + 2], b""
        self._lower = self.head.lower()
        self._missing = self._read_head(self._lower)
        return self._feed_body(data[end + 4 :])

    def _read_head(self, head: bytes) -> int:
        """The length of the body to come."""
        if not head.startswith(b"http/1."):
            raise UnreadableAnswer(f"not HTTP/1.x: {head[:40]!r}")
        self.status = int(head[9:12])
        self.closes = b"\r\nconnection: close" in head or head.startswith(b"http/1.0")
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            return int(head[at + 17 : head.find(b"\r\n", at + 17)])
        return self._length_unsaid(head)

    def _length_unsaid(self, head: bytes) -> int:
        if self.status in (204, 304):
            return 0
        if b"\r\ntransfer-encoding:" in head:
            self._chunks = ChunkReader()
            return _CHUNKED
        return _UNTIL_CLOSE

    def _feed_body(self, data: bytes) -> bool:
        if len(self.body) < _KEPT_BYTES:
            self.body += data[: _KEPT_BYTES - len(self.body)]
        if self._missing == _UNTIL_CLOSE:
            return False
        if self._missing == _CHUNKED:
            return self._feed_chunks(data)
        if len(data) > self._missing:
            raise UnreadableAnswer(f"{len(data) - self._missing} bytes more than the answer's Content-Length")
        self._missing -= len(data)
        return self._missing == 0

    def _feed_chunks(self, data: bytes) -> bool:
        if not self._chunks.feed(data):
            return False
        self._missing = 0
        self.body = self._chunks.first
        return True


class ChunkReader:
    """Finds the end of one chunked body; `first` holds its first bytes."""

    __slots__ = ("_buffer", "_left", "_trailers", "first")

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0  # bytes of the current chunk and the line end after it
        self._trailers = False
        self.first = b""

    def feed(self, data: bytes) -> bool:
        """True when the last chunk and its trailers have ended."""
        self._buffer += data
        while self._buffer:
            if self._left:
                self._take()
                continue
            line, line_end, rest = self._buffer.partition(b"\r\n")
            if not line_end:
                return False
            self._buffer = rest
            if self._line(line):
                return self._over()
        return False

    def _take(self) -> None:
        piece = self._buffer[: self._left]
        if len(self.first) < _KEPT_BYTES:
            self.first += piece[: max(0, min(self._left - 2, _KEPT_BYTES - len(self.first)))]
        self._left -= len(piece)
        self._buffer = self._buffer[len(piece) :]

    def _line(self, line: bytes) -> bool:
        """Reads a chunk's size or a trailer; True for the empty line that ends the trailers."""
        if self._trailers:
            return not line
        size = int(line.partition(b";")[0], 16)
        self._trailers = size == 0
        self._left = size + 2 if size else 0
        return False

    def _over(self) -> bool:
        if self._buffer:
            raise UnreadableAnswer(f"{len(self._buffer)} bytes more than the answer's last chunk")
        return True
