"""Multipart forms: one reader with limits, for inputs of models and for uploaded files. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from penstock.errors import BadParameter, BadRequest, UnsupportedMedia
from penstock.gateway.asgi.negotiation import MULTIPART, base_type
from penstock.inputs.form import FormPart

MAX_PARTS = 16
MAX_PART_HEADER_BYTES = 4 * 1024
# The longest that RFC 2046 allows.
MAX_BOUNDARY_BYTES = 70
MAX_FIELD_BYTES = 4 * 1024
FILE = "file"


@dataclass(slots=True)
class Part:
    """One part of a form. `filename` is None for a plain field, `content_type` empty if none was sent; `size` is in bytes."""

    name: str
    filename: str | None
    content_type: str
    size: int = 0
    # Joined once: an input arrives as one chunk, and joining that copies nothing.
    _chunks: list[bytes] = field(default_factory=list)

    def append(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.size += len(chunk)

    @property
    def data(self) -> bytes:
        """The bytes that arrived since the last `take`."""
        return b"".join(self._chunks)

    def take(self) -> bytes:
        """The bytes that arrived since the last call."""
        data = self.data
        self._chunks.clear()
        return data


class FormReader:
    """Fed with `write`, ended with `finish`; a part joins `parts` once its headers are complete.

    Raises `BadRequest` for a form that is malformed, has more than `most` parts or is over another limit. The user of the
    reader limits the data of each part.
    """

    def __init__(self, content_type: str, *, most: int = MAX_PARTS) -> None:
        self.parts: list[Part] = []
        self._most = most
        self._begun = 0
        self._ended = False
        self._headers: dict[bytes, bytes] = {}
        self._header = [b"", b""]
        self._header_bytes = 0
        self._parser = MultipartParser(
            _boundary(content_type),
            {
                "on_part_begin": self._begin_part,
                "on_part_data": lambda data, start, end: self.parts[-1].append(data[start:end]),
                "on_header_field": lambda data, start, end: self._extend_header(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._extend_header(1, data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_end": self._end_form,
            },
        )

    def write(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError:
            raise _malformed() from None

    def finish(self) -> None:
        """Raises `BadRequest` for a body without its closing boundary: its last part may be incomplete."""
        if not self._ended:
            raise _malformed()

    def _end_form(self) -> None:
        self._ended = True

    def _begin_part(self) -> None:
        self._begun += 1
        if self._begun > self._most:
            raise BadRequest(f"the multipart body has more than {self._most} parts")
        self._headers, self._header_bytes = {}, 0

    def _extend_header(self, which: int, data: bytes) -> None:
        self._header_bytes += len(data)
        if self._header_bytes > MAX_PART_HEADER_BYTES:
            raise BadRequest(f"the headers of a part exceed {MAX_PART_HEADER_BYTES} bytes")
        self._header[which] += data

    def _end_header(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = [b"", b""]

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        filename = options.get(b"filename")
        self.parts.append(
            Part(
                name=options.get(b"name", b"").decode("utf-8", "replace"),
                filename=None if filename is None else filename.decode("utf-8", "replace"),
                content_type=self._headers.get(b"content-type", b"").decode("latin-1").strip(),
            )
        )


def _boundary(content_type: str) -> bytes:
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not boundary or len(boundary) > MAX_BOUNDARY_BYTES:
        raise BadRequest(f"the multipart Content-Type names no boundary of 1 to {MAX_BOUNDARY_BYTES} characters")
    return boundary


def _malformed() -> BadRequest:
    return BadRequest("the multipart body is malformed")


def multipart_parts(body: bytes, content_type: str, *, most: int = MAX_PARTS) -> list[FormPart]:
    """The parts of a form, in order. Raises `BadRequest` if the form is malformed, cut off or over a limit."""
    form = FormReader(content_type, most=most)
    form.write(body)
    form.finish()
    return [FormPart(part.name, part.take(), part.content_type, part.filename) for part in form.parts]


class UploadForm:
    """A form with one file, the part of that name, read piece by piece: returns the file's bytes, keeps small fields.

    Raises `UnsupportedMedia` for anything but a form with parts.
    """

    def __init__(self, content_type: str, part: str = FILE) -> None:
        if base_type(content_type) != MULTIPART:
            raise UnsupportedMedia(f"this path takes {MULTIPART}, with the part `{part}`")
        self._name = part
        self._reader = FormReader(content_type)
        self._seen = 0
        self._file: Part | None = None

    @property
    def filename(self) -> str:
        """The name that the sender gave the file; `file` if it gave none."""
        return (self._file.filename if self._file else None) or FILE

    def field(self, name: str) -> str | None:
        """A small field's value, the last one of several; None if the form has no such field."""
        last = next((part for part in reversed(self._reader.parts) if part.name == name), None)
        return None if last is None else last.data.decode("utf-8", "replace")

    def write(self, data: bytes) -> bytes:
        """Read a piece of the body; returns the bytes of the file in it."""
        self._reader.write(data)
        # Parts arrive in order: among those read before, only the last one can have grown.
        arrived = self._reader.parts[max(0, self._seen - 1) :]
        self._seen = len(self._reader.parts)
        return b"".join([self._read_part(part) for part in arrived])

    def finish(self) -> None:
        """Raises `BadRequest` for a body that was cut off or had no file."""
        self._reader.finish()
        if self._file is None:
            raise BadParameter(f"the form has no part `{self._name}`", param=self._name)

    def _read_part(self, part: Part) -> bytes:
        if part.name != self._name:
            if part.size > MAX_FIELD_BYTES:
                raise BadRequest(f"the field {part.name[:80]!r} has more than {MAX_FIELD_BYTES} bytes")
            return b""
        if self._file is not None and part is not self._file:
            raise BadParameter(f"the form has two parts `{self._name}`", param=self._name)
        self._file = part
        return part.take()
