"""A multipart body as one input: by the model's schema, the one part that is the input, or an object of fields and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from penstock.errors import BadRequest
from penstock.gateway.asgi import bodies, multipart, negotiation, wire
from penstock.gateway.asgi.negotiation import JSON, MULTIPART
from penstock.gateway.models.registry import VersionEntry
from penstock.inputs.file import File
from penstock.inputs.form import FormPart, encode_form, form_fields, is_file_schema, read_form
from penstock.job import FORM_MEDIA, Payload

if TYPE_CHECKING:
    from penstock.settings.gateway import GatewaySettings

# A field of more values is read by the worker alone, as such a body is.
_MOST_COMMAS = bodies.MAX_VALUES
# Code that takes raw bodies names its fields itself, and some of it has dozens.
MOST_RAW_PARTS = 256


def read_multipart(form: Payload, version: VersionEntry, limits: GatewaySettings) -> Payload:
    """The input that a multipart body stands for. Takes milliseconds for large forms: call it in a thread. Raises `BadRequest`
    for a form that cannot be read, and as `input_of` does.
    """
    most = MOST_RAW_PARTS if version.takes_raw else multipart.MAX_PARTS
    return input_of(multipart.multipart_parts(form.data, form.content_type, most=most), version, limits)


def input_of(parts: Sequence[FormPart], version: VersionEntry, limits: GatewaySettings) -> Payload:
    """The input that the parts of a form stand for.

    Raises `InvalidInput` with the name of each part that the model has no place for, `TooLarge` for too much text.
    """
    if version.takes_raw:
        return packed_form(parts)
    if not parts:
        raise BadRequest("the multipart body has no parts")
    text_bytes = sum(len(part.data) for part in parts if not part.is_file)
    if text_bytes > limits.max_json_bytes:
        raise wire.too_large(text_bytes, limits.max_json_bytes)
    if version.info is None:
        # Nobody has loaded this version yet, so nobody knows its schema. The worker reads the form by it.
        return packed_form(parts)
    found = check_form(parts, version, limits)
    if not isinstance(found, FormPart):
        return packed_form(parts)
    media = _media_of(found, version)
    if media == JSON and len(found.data) > limits.max_json_bytes:
        raise wire.too_large(len(found.data), limits.max_json_bytes)
    return packed_form(parts) if is_file_schema(version.input_schema) and media != JSON else Payload(media, found.data)


def check_form(parts: Sequence[FormPart], version: VersionEntry, limits: GatewaySettings) -> FormPart | dict[str, Any]:
    """As `read_form`, and checks the object against the schema. Raises `InvalidInput`, and `BadRequest` for unreadable JSON."""
    fields = form_fields(version.input_schema)
    too_many: list[bytes] = []

    def read_json(data: bytes) -> Any:
        if data.count(b",") >= _MOST_COMMAS:
            too_many.append(data)
            return None
        return _read_json(data)

    found = read_form(parts, fields, takes=lambda media: negotiation.is_accepted(media, version.accepts), read_json=read_json)
    if not isinstance(found, FormPart) and version.validator is not None and not too_many:
        bodies.check_schema(as_json(found), version.validator, version.input_schema)
    return found


def packed_form(parts: Sequence[FormPart]) -> Payload:
    """The form as it is stored."""
    return Payload(FORM_MEDIA, encode_form(parts))


def _media_of(part: FormPart, version: VersionEntry) -> str:
    media = negotiation.media_type(wire.header_value(part.media), accepts=version.accepts)
    if negotiation.base_type(media) == MULTIPART:
        raise BadRequest("a part of a multipart body cannot be multipart itself")
    return media


def _read_json(data: bytes) -> Any:
    try:
        value = bodies.parse_json(data)
    except BadRequest as error:
        raise ValueError(error.message.removeprefix("the body is not valid JSON: ")) from error
    if value is bodies.UNBUILT:
        value = orjson.loads(data)
        bodies.refuse_repeats(data, value)
    return value


def as_json(value: Any) -> Any:
    """The object as JSON would have it: a file is a text of the length of its base64."""
    if isinstance(value, File):
        return "A" * (4 * ((len(value) + 2) // 3))
    if isinstance(value, dict):
        return {name: as_json(own) for name, own in value.items()}
    # A field of numbers may be long. Only a list of files has any among its elements.
    is_files = isinstance(value, list) and bool(value) and isinstance(value[0], File)
    return [as_json(own) for own in value] if is_files else value
