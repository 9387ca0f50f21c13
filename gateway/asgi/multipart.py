"""A multipart form with one file, read piece by piece: small fields are kept, the file's bytes are handed on as they come."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from penstock.errors import BadParameter, BadRequest, UnsupportedMedia
from penstock.gateway.asgi.negotiation import MULTIPART, base_type

MAX_PARTS = 16
MAX_PART_HEADER_BYTES = 4 * 1024
MAX_FIELD_BYTES = 4 * 1024
FILE = "file"


@dataclass(slots=True)
class UploadForm:
    """Feed it with `write`; `take` gives what has come of the file since it was last asked."""

    content_type: str
    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    _parser: MultipartParser | None = None
    _parts: int = 0
    _header: list[bytes] = field(default_factory=lambda: [b"", b""])
    _header_bytes: int = 0
    _disposition: bytes = b""
    _name: str = ""
    _value: bytearray = field(default_factory=bytearray)
    _pending: bytearray = field(default_factory=bytearray)

    def open(self) -> UploadForm:
        """Raises `UnsupportedMedia` for anything but a form with parts."""
        if base_type(self.content_type) != MULTIPART:
            raise UnsupportedMedia(f"this path takes {MULTIPART}, with the parts `file` and `purpose`")
        _, options = parse_options_header(self.content_type)
        boundary = options.get(b"boundary", b"")
        if not boundary or len(boundary) > 70:
            raise BadRequest("the multipart Content-Type names no boundary of 1 to 70 characters")
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_part_data": self._data,
                "on_part_end": self._end,
                "on_header_field": lambda data, start, end: self._grow_header(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._grow_header(1, data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
            },
        )
        return self

    def write(self, data: bytes) -> None:
        self._checked(data)

    def close(self) -> None:
        """Raises `BadRequest` for a body that was cut off or had no file."""
        self._checked(None)
        if self.filename is None:
            raise BadParameter("the form has no part `file`", param=FILE)

    def take(self) -> bytes:
        data = bytes(self._pending)
        self._pending.clear()
        return data

    def _checked(self, data: bytes | None) -> None:
        assert self._parser is not None, "open() comes first"
        try:
            if data is None:
                self._parser.finalize()
            else:
                self._parser.write(data)
        except FormParserError:
            raise BadRequest("the multipart body is malformed") from None

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadRequest(f"more than {MAX_PARTS} parts in a form")
        self._header_bytes, self._disposition = 0, b""
        self._value = bytearray()

    def _grow_header(self, which: int, data: bytes) -> None:
        self._header_bytes += len(data)
        if self._header_bytes > MAX_PART_HEADER_BYTES:
            raise BadRequest(f"the headers of a part exceed {MAX_PART_HEADER_BYTES} bytes")
        self._header[which] += data

    def _end_header(self) -> None:
        if self._header[0].lower() == b"content-disposition":
            self._disposition = self._header[1]
        self._header = [b"", b""]

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name != FILE:
            return
        if self.filename is not None:
            raise BadParameter("the form has two parts `file`", param=FILE)
        self.filename = options.get(b"filename", b"").decode("utf-8", "replace") or "file"

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self._pending += memoryview(data)[start:end]
            return
        self._value += memoryview(data)[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            raise BadRequest(f"the field {self._name[:80]!r} has more than {MAX_FIELD_BYTES} bytes")

    def _end(self) -> None:
        if self._name != FILE:
            self.fields[self._name] = self._value.decode("utf-8", "replace")
