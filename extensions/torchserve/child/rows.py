"""The input of one request as the row that TorchServe gives a handler: by its media type, or one entry per field of a form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidInput
from penstock.extensions.torchserve.child.json_text import read_json
from penstock.extensions.torchserve.urlencoded import URLENCODED, pairs_of
from penstock.handlers.media import BYTES, JSON, Codec
from penstock.handlers.schema import reader_for
from penstock.inputs.form import FormPart, decode_form
from penstock.job import FORM_MEDIA, REQUEST_MEDIA, TENSORS_MEDIA

BODY = "body"
_MOST_FIELDS = 1_000


@dataclass(frozen=True, slots=True)
class _Field:
    """One entry of a row: its bytes, or a value that was read already."""

    name: str
    media: str
    data: bytes
    value: Any = None


class ArchiveRow:
    """One input. `take` gives a row that no other call has seen: handlers change theirs, and a call may be repeated."""

    __slots__ = ("_decodes", "_fields", "_fresh")

    def __init__(self, fields: Sequence[_Field], *, decodes: bool) -> None:
        self._fields = fields
        self._decodes = decodes
        # Read here, beside the model's work on other batches.
        self._fresh: dict[str, Any] | None = self._read()

    def take(self) -> dict[str, Any]:
        row, self._fresh = self._fresh, None
        return self._read() if row is None else row

    @property
    def media_types(self) -> dict[str, dict[str, str]]:
        """What a handler finds of each entry among the request's headers."""
        return {own.name: {"content-type": own.media} for own in self._fields}

    def _read(self) -> dict[str, Any]:
        return {own.name: _value(own, decodes=self._decodes) for own in self._fields}


def _value(own: _Field, *, decodes: bool) -> Any:
    """Parsed JSON, text, or a bytearray: for other types, and for data that does not fit its type."""
    if own.value is not None:
        return deepcopy(own.value)
    if decodes and own.media == JSON:
        try:
            return read_json(own.data)
        except (ValueError, RecursionError):
            return bytearray(own.data)
    if decodes and own.media.startswith("text/"):
        try:
            return own.data.decode()
        except UnicodeDecodeError:
            return bytearray(own.data)
    return bytearray(own.data)


@dataclass(frozen=True, slots=True)
class RowCodec(Codec):
    """Reads inputs of every media type as rows. `decodes`: JSON and text are parsed; else every value is a bytearray."""

    decodes: bool = True

    def decode(self, content_type: str, data: bytes) -> ArchiveRow:
        if content_type == REQUEST_MEDIA:
            from penstock.inputs.request import decode_request

            said = decode_request(data)
            return self.decode(said.content_type, said.data)
        if content_type == FORM_MEDIA:
            return self._row([_part(part) for part in decode_form(data)])
        if content_type == TENSORS_MEDIA:
            return self._row([_Field(BODY, JSON, b"", _tensors(data))])
        media = _media(content_type)
        return self._row(_urlencoded(data) if media == URLENCODED else [_Field(BODY, media, data)])

    def from_value(self, value: Any) -> ArchiveRow:
        """The row of a JSON value that was read already, as a run has it. Bytes are a body of no known type."""
        if isinstance(value, (bytes, bytearray)):
            return self._row([_Field(BODY, BYTES, bytes(value))])
        # None is what an entry has whose bytes are still to be read.
        read = _Field(BODY, JSON, b"null") if value is None else _Field(BODY, JSON, b"", value)
        return self._row([read if self.decodes else _Field(BODY, JSON, json.dumps(value).encode())])

    def from_values(self, values: list[Any]) -> list[Any]:
        return [self.from_value(value) for value in values]

    def schema(self) -> None:
        """The rows of an archive have none."""

    def _row(self, fields: Sequence[_Field]) -> ArchiveRow:
        return ArchiveRow(fields, decodes=self.decodes)


def row_codec(*, decodes: bool = True) -> RowCodec:
    return RowCodec(Any, reader_for(Any), raw=False, decodes=decodes)


def _media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _part(part: FormPart) -> _Field:
    # A field's media type says nothing in TorchServe: only that of a file counts, and one without any is plain bytes.
    return _Field(part.name, _media(part.content_type or BYTES) if part.is_file else "", part.data)


def _urlencoded(data: bytes) -> list[_Field]:
    """Raises `InvalidInput`."""
    try:
        return [_Field(name, "", value) for name, value in pairs_of(data, _MOST_FIELDS)]
    except ValueError as error:
        raise InvalidInput(f"the form has more than {_MOST_FIELDS} fields") from error


def _tensors(data: bytes) -> dict[str, Any]:
    """Named tensors as the Open Inference Protocol's request in JSON, which is what TorchServe hands on."""
    # Few archives are called by that protocol.
    from penstock.tensors.tensor import TEXTS, decode_tensors, numbers_of, texts_of

    inputs = []
    for one in decode_tensors(data):
        is_text = one.datatype == TEXTS
        elements = [text.decode("utf-8", "replace") for text in texts_of(one)] if is_text else numbers_of(one)
        inputs.append({"name": one.name, "shape": list(one.shape), "datatype": one.datatype, "data": elements})
    return {"inputs": inputs}
