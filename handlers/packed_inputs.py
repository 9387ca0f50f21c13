"""Reads inputs that a gateway packed: a form, named tensors, an input with the headers of its request."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.handlers.media import JSON, Codec, accepted, is_file
from penstock.inputs.form import FormPart, decode_form, form_fields, is_file_schema, read_form
from penstock.inputs.request import decode_request
from penstock.job import FORM_MEDIA, REQUEST_MEDIA, is_media_accepted, split_media_type


def decode_packed(codec: Codec, content_type: str, data: bytes) -> Any:
    """Raises as `Codec.decode` does."""
    if content_type == FORM_MEDIA:
        return _form(codec, data)
    if content_type == REQUEST_MEDIA:
        # This version takes no `Request`s, and drops what another version of its model asks for.
        said = decode_request(data)
        return codec.decode(said.content_type, said.data)
    return _tensors(codec, data)


def _form(codec: Codec, data: bytes) -> Any:
    schema = codec.form_schema or codec.schema()
    taken = accepted(codec.item_type)
    parts = decode_form(data)
    read = read_form(
        parts, form_fields(schema), takes=lambda media: is_media_accepted(media, taken), read_json=msgspec.json.decode
    )
    if not isinstance(read, FormPart):
        return codec.reader.from_form(read)
    if is_file_schema(schema) and split_media_type(read.media)[0] != JSON:
        return codec.item_type.read(read.file())
    return codec.decode(read.media, read.data)


def _tensors(codec: Codec, data: bytes) -> Any:
    # Only models that get tensors import the code that reads them.
    from penstock.inputs.tensors import plain_input, whole_bytes
    from penstock.tensors.tensor import decode_tensors

    tensors = decode_tensors(data)
    if codec.arrays:
        from penstock.handlers.tensors import arrays_of

        return arrays_of(tensors)
    if codec.raw:
        return bytes(whole_bytes(tensors))
    if is_file(codec.item_type):
        return codec.item_type.read(whole_bytes(tensors))
    return codec.reader.from_form(plain_input(tensors, codec.form_schema or codec.schema()))
