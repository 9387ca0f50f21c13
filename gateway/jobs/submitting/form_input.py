"""A multipart body as one input: its only part, or an object of fields and files, as the model's schema says."""

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

# A field with more values is read only by the worker, as large bodies are.
_MOST_COMMAS = bodies.MAX_VALUES
# Models without a schema define their fields in code, and some have dozens.
MOST_RAW_PARTS = 256


def read_multipart(form: Payload, version: VersionEntry, limits: GatewaySettings) -> Payload:
    """The input in a multipart body. Takes milliseconds for large forms: call it in a thread. Raises `BadRequest` for an
    unreadable form, and as `input_of` does.
    """
    most = MOST_RAW_PARTS if version.takes_raw else multipart.MAX_PARTS
    return input_of(multipart.multipart_parts(form.data, form.content_type, most=most), version, limits)


def input_of(parts: Sequence[FormPart], version: VersionEntry, limits: GatewaySettings) -> Payload:
    """The input in the parts of a form.

    Raises `InvalidInput` with the names of the parts that the model does not take, `TooLarge` for too much text.
    """
    if version.takes_raw:
        return packed_form(parts)
    if not parts:
        raise BadRequest("the multipart body has no parts")
    text_bytes = sum(len(part.data) for part in parts if not part.is_file)
    if text_bytes > limits.max_json_bytes:
        raise wire.too_large(text_bytes, limits.max_json_bytes)
    if version.info is None:
        # No worker has loaded this version yet, so its schema is unknown here. The worker reads the form.
        return packed_form(parts)
    form = check_form(parts, version, limits)
    if not isinstance(form, FormPart):
        return packed_form(parts)
    media = _media_of(form, version)
    if media == JSON and len(form.data) > limits.max_json_bytes:
        raise wire.too_large(len(form.data), limits.max_json_bytes)
    return packed_form(parts) if is_file_schema(version.input_schema) and media != JSON else Payload(media, form.data)


def check_form(parts: Sequence[FormPart], version: VersionEntry, limits: GatewaySettings) -> FormPart | dict[str, Any]:
    """As `read_form`, and checks the object against the schema. Raises `InvalidInput`, and `BadRequest` for unreadable JSON."""
    fields = form_fields(version.input_schema)
    too_many: list[bytes] = []

    def read_json(data: bytes) -> Any:
        if data.count(b",") >= _MOST_COMMAS:
            too_many.append(data)
            return None
        return _read_json(data)

    form = read_form(parts, fields, takes=lambda media: negotiation.is_accepted(media, version.accepts), read_json=read_json)
    if not isinstance(form, FormPart) and version.validator is not None and not too_many:
        bodies.check_schema(as_json(form), version.validator, version.input_schema)
    return form


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
    """The object as JSON, for the schema: a text of the same length stands for a file's base64."""
    if isinstance(value, File):
        return "A" * (4 * ((len(value) + 2) // 3))
    if isinstance(value, dict):
        return {name: as_json(own) for name, own in value.items()}
    # Only lists of files contain files: a long list of numbers need not be copied.
    is_files = isinstance(value, list) and bool(value) and isinstance(value[0], File)
    return [as_json(own) for own in value] if is_files else value
