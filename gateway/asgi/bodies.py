"""Bodies: is this JSON well-formed and shallow, does it fit the schema, which part of a multipart body is meant. Pure."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Any

import jsonschema_rs
import msgspec
import orjson
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from penstock.errors import BadRequest, InvalidInput
from penstock.gateway.asgi.negotiation import JSON, OCTETS
from penstock.gateway.asgi.shapes import shape_faults

# Above this a full parse costs milliseconds of the loop; well-formedness is then checked without building the value.
WHOLE_PARSE_BYTES = 256 * 1024
MAX_VALUES = 500_000
MAX_TOLD_ERRORS = 10
MAX_TOLD_CHARS = 200
MAX_TOLD_FORMS = 4
MAX_PARTS = 16
MAX_PART_HEADER_BYTES = 4 * 1024
# Possessive, and content with a string that never ends: linear on any bytes.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ONLY_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
UNBUILT = object()
_raw = msgspec.json.Decoder(msgspec.Raw)


def parse_json(body: bytes, *, max_depth: int) -> Any:
    """The value, or `UNBUILT` for a body too large to be built on the event loop.

    Raises `BadRequest` if it is malformed, nested too deep, or names a member of an object twice.
    """
    large = len(body) > WHOLE_PARSE_BYTES
    try:
        value = _check_large(body) if large else orjson.loads(body)
    except (orjson.JSONDecodeError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {_reason(error)}") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    if body.count(b"[") + body.count(b"{") > max_depth and deeper_than(body, max_depth):
        raise _too_deep(max_depth)
    if value is not UNBUILT:
        refuse_repeats(body, value)
    return value


def refuse_repeats(body: bytes, value: Any) -> None:
    """Raises `BadRequest` for an object that names a member twice: readers differ in which one they take."""
    colons = body.count(b":")
    if colons < 2:
        return
    # Written anew, the value has lost what stood twice, and with it at least one colon; unless an escaped one made up for it.
    escaped = b"\\u003a" in body or b"\\u003A" in body
    if not escaped and orjson.dumps(value).count(b":") == colons:
        return
    json.loads(body, object_pairs_hook=_members)


def _members(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise BadRequest(f"the JSON names the member {name[:80]!r} of an object twice", hint="Name each member once.")
        seen.add(name)


def _check_large(body: bytes) -> Any:
    _raw.decode(body)
    if not body.isascii():
        body.decode("utf-8")
    return UNBUILT


def _reason(error: Exception) -> str:
    return str(error).removeprefix("JSON is malformed: ")[:160]


def _too_deep(limit: int) -> BadRequest:
    return BadRequest(f"the JSON is nested deeper than {limit} levels", hint="Flatten the input.")


def deeper_than(body: bytes, limit: int) -> bool:
    """Whether well-formed JSON nests deeper than `limit`, at C speed."""
    brackets = _STRING.sub(b"", body).translate(None, _ONLY_BRACKETS)
    # Leaf pairs are most of any real body; taking them out leaves little to walk.
    for level in range(3):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return level + 1 > limit
    steps = array("b", brackets.translate(_STEPS))
    return max(accumulate(steps)) + 3 > limit


def cheap_to_build(body: bytes) -> bool:
    """False for a body of so many small values that building them would hold the process; its worker checks it alone."""
    return body.count(b",") < MAX_VALUES


def check_schema(value: Any, validator: jsonschema_rs.Validator, schema: Mapping[str, Any]) -> None:
    """Raises `InvalidInput` with a JSON Pointer per fault, at most ten; `schema` is the validator's own."""
    if validator.is_valid(value):
        return
    misfits = [{"pointer": json_pointer(path), "detail": fault} for path, fault in shape_faults(value, schema)]
    faults = misfits or (told for fault in validator.iter_errors(value) for told in _told(fault))
    raise InvalidInput("The input does not fit the model's schema", errors=list(islice(faults, MAX_TOLD_ERRORS)))


def _told(fault: jsonschema_rs.ValidationError) -> Iterator[dict[str, str]]:
    """The fault; of a choice between forms those of the form that was meant, or else that it is none of them."""
    forms: list[list[jsonschema_rs.ValidationError]] = getattr(fault.kind, "context", None) or []
    meant = next((form for form in forms if not any(_of_another_type(own, fault) for own in form)), None)
    if meant is not None:
        for own in meant:
            yield from _told(own)
        return
    types = dict.fromkeys(own.message for form in forms for own in form if _of_another_type(own, fault))
    words = ", or ".join(_shortened(message) for message in [*types][:MAX_TOLD_FORMS] or [fault.message])
    yield {"pointer": json_pointer(fault.instance_path), "detail": words}


def _of_another_type(own: jsonschema_rs.ValidationError, whole: jsonschema_rs.ValidationError) -> bool:
    return own.kind.name == "type" and own.instance_path == whole.instance_path


def _shortened(message: str) -> str:
    """Both ends: a message begins with the value and ends with the rule."""
    return message if len(message) <= MAX_TOLD_CHARS else f"{message[:60]} ... {message[-(MAX_TOLD_CHARS - 65) :]}"


def check_large(body: bytes, validator: jsonschema_rs.Validator, schema: Mapping[str, Any]) -> None:
    """As `check_schema`, building the value first; for a thread of its own."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {_reason(error)}") from None
    refuse_repeats(body, value)
    check_schema(value, validator, schema)


def json_pointer(path: list[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    chunks: list[bytes] = field(default_factory=list)
    name: bytes = b""
    filename: bytes | None = None


@dataclass(slots=True)
class _Reader:
    """Collects the parts that the parser announces."""

    parts: list[_Part] = field(default_factory=list)
    header: list[bytes] = field(default_factory=lambda: [b"", b""])
    header_bytes: int = 0

    def begin(self) -> None:
        if len(self.parts) >= MAX_PARTS:
            raise BadRequest(f"more than {MAX_PARTS} parts in a multipart body; one part is the input")
        self.parts.append(_Part())
        self.header_bytes = 0

    def grow_header(self, which: int, data: bytes) -> None:
        self.header_bytes += len(data)
        if self.header_bytes > MAX_PART_HEADER_BYTES:
            raise BadRequest(f"the headers of a part exceed {MAX_PART_HEADER_BYTES} bytes")
        self.header[which] += data

    def end_header(self) -> None:
        self.parts[-1].headers[self.header[0].lower()] = self.header[1]
        self.header = [b"", b""]

    def end_headers(self) -> None:
        part = self.parts[-1]
        _, options = parse_options_header(part.headers.get(b"content-disposition", b""))
        part.name, part.filename = options.get(b"name", b""), options.get(b"filename")

    def chosen(self) -> _Part:
        """The first file, else the field named `data`."""
        files = [part for part in self.parts if part.filename is not None]
        fields = [part for part in self.parts if part.name == b"data"]
        if not files and not fields:
            raise BadRequest("the multipart body has neither a file nor a field named 'data'")
        return (files or fields)[0]


def multipart_input(body: bytes, content_type: str) -> tuple[str, bytes]:
    """Media type and bytes of the part that is the input; raises `BadRequest` if there is none or the framing is broken."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if not boundary:
        raise BadRequest("the multipart Content-Type names no boundary")
    reader = _Reader()
    try:
        parser = _parser(boundary, reader)
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise BadRequest("the multipart body is malformed") from None
    part = reader.chosen()
    return _part_type(part), b"".join(part.chunks)


def _part_type(part: _Part) -> str:
    given = part.headers.get(b"content-type", b"").decode("latin-1").strip()
    if given and given.lower() != "text/plain":
        return given
    return OCTETS if part.filename is not None else JSON


def _parser(boundary: bytes, reader: _Reader) -> MultipartParser:
    return MultipartParser(
        boundary,
        {
            "on_part_begin": reader.begin,
            "on_part_data": lambda data, start, end: reader.parts[-1].chunks.append(data[start:end]),
            "on_header_field": lambda data, start, end: reader.grow_header(0, data[start:end]),
            "on_header_value": lambda data, start, end: reader.grow_header(1, data[start:end]),
            "on_header_end": reader.end_header,
            "on_headers_finished": reader.end_headers,
        },
    )
