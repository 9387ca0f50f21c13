"""Builds an input of a stage, or the result, from what earlier stages gave. Pure, but for the call that reads a payload.

One whole value is passed on by reference: its blob is neither read nor copied. Fields and objects are cut and joined here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock.errors import InvalidInput, TooLarge
from penstock.extensions.pipelines.spec import ValuePath, Wanted
from penstock.inputs.form import FormPart, decode_form, encode_form
from penstock.inputs.request import unpacked
from penstock.job import FORM_MEDIA, REQUEST_MEDIA, TENSORS_MEDIA, Payload
from penstock.outputs.bundle import (
    BUNDLE_MEDIA,
    HEAD_LENGTH_BYTES,
    decode_head,
    encode_bundle,
    head_length,
    reference,
    with_files,
)
from penstock.outputs.media import Media, split_filename, stored_type

JSON = "application/json"
# The largest object that is joined here. The executor has several in memory at the same time.
MOST_JOINED_BYTES = 64 << 20
Read = Callable[[Payload], bytes]
Values = Mapping[str, Payload]


def bound_input(wanted: Wanted, values: Values, read: Read, *, form: bool = False, as_bytes: bool = False) -> Payload:
    """The input of a stage. Raises `InvalidInput` where a value has no such field, `TooLarge` for an object that is too large.

    An object whose members are all JSON is JSON, unless a `form` is asked for. With a file among them it is a form. `as_bytes`:
    it is a form whose fields are bytes of no type.
    """
    bound = _bound(wanted, values, read)
    if as_bytes and not isinstance(bound, Payload):
        return Payload(FORM_MEDIA, encode_form([FormPart(name, one.data) for name, one in bound.items()]))
    if isinstance(bound, Payload):
        return _as_input(bound, read)
    if not form and all(_is_json(one) for one in bound.values()):
        return _object(bound)
    return Payload(FORM_MEDIA, encode_form([_part(name, one) for name, one in bound.items()]))


def bound_result(wanted: Wanted, values: Values, read: Read) -> Payload:
    """The result of a pipeline; an object with files in it is a bundle. Raises as `bound_input` does."""
    bound = _bound(wanted, values, read)
    if isinstance(bound, Payload):
        return bound
    if all(_is_json(one) for one in bound.values()):
        return _object(bound)
    return _bundle({name: _plain(one) for name, one in bound.items()})


def _bound(wanted: Wanted, values: Values, read: Read) -> Payload | dict[str, Payload]:
    """One value by reference, or each of them with its bytes."""
    if isinstance(wanted, str):
        return _one(ValuePath.parse(wanted), values, read)
    left = MOST_JOINED_BYTES
    bound: dict[str, Payload] = {}
    for name, text in wanted.items():
        one = _one(ValuePath.parse(text), values, read)
        bound[name] = unpacked(Payload(one.content_type, read(one)))
        left -= len(bound[name].data)
        if left < 0:
            raise TooLarge(f"what is joined here has more than {MOST_JOINED_BYTES >> 20} MiB; pass large values on alone")
    return bound


def _one(source: ValuePath, values: Values, read: Read) -> Payload:
    value = values[source.stage]
    if not source.path:
        return value
    opened = unpacked(Payload(value.content_type, read(value)))
    whole = _opened(opened, opened.data, source)
    return _payload(_inside(whole, source))


def _opened(value: Payload, data: bytes, source: ValuePath) -> Any:
    """The value with its files, to be looked into."""
    media = split_filename(value.content_type)[0]
    if media == BUNDLE_MEDIA:
        return _unbundled(data)
    if media == FORM_MEDIA:
        return {part.name: _of_part(part) for part in decode_form(data)}
    if _is_json(value):
        return msgspec.json.decode(data)
    raise InvalidInput(f"{source} names a field of {source.stage}, which is {media} and has none")


def _inside(whole: Any, source: ValuePath) -> Any:
    value = whole
    for depth, step in enumerate(source.path):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            before = ".".join((source.stage, *source.path[:depth]))
            raise InvalidInput(f"there is no {source}: {before} has no {step!r}")
    return value


def _unbundled(data: bytes) -> Any:
    head_end = HEAD_LENGTH_BYTES + head_length(data[:HEAD_LENGTH_BYTES])
    bundle = decode_head(data[HEAD_LENGTH_BYTES:head_end])
    files = [data[span.start : span.end] for _, span in bundle.files]
    return with_files(msgspec.json.decode(data[bundle.json.start : bundle.json.end]), files)


def _of_part(part: FormPart) -> Any:
    media = part.media
    if part.is_file or split_filename(media)[0] != JSON:
        return Media(part.data, media, part.filename or None)
    try:
        return msgspec.json.decode(part.data)
    except msgspec.MsgspecError:
        return part.data.decode("utf-8", "replace")


def _payload(value: Any) -> Payload:
    if isinstance(value, Media):
        return Payload(stored_type(value.content_type, value.filename), bytes(value.data))
    if _has_files(value):
        return _bundle(value)
    return Payload(JSON, msgspec.json.encode(value))


def _has_files(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_files, value.values()))
    return any(map(_has_files, value)) if isinstance(value, list) else isinstance(value, Media)


def _as_input(payload: Payload, read: Read) -> Payload:
    """A bundle as the form that a model reads; anything else as it is."""
    if split_filename(payload.content_type)[0] != BUNDLE_MEDIA:
        return payload
    whole = _unbundled(read(payload))
    fields = whole if isinstance(whole, dict) else {"data": whole}
    return Payload(FORM_MEDIA, encode_form([_part(name, _payload(one)) for name, one in fields.items()]))


def _part(name: str, one: Payload) -> FormPart:
    media, filename = split_filename(one.content_type)
    if _is_json(one):
        return FormPart(name, one.data, JSON)
    return FormPart(name, one.data, _joinable(name, media), filename or name)


def _plain(one: Payload) -> Any:
    """The value of a member of a bundle."""
    media, filename = split_filename(one.content_type)
    if media == BUNDLE_MEDIA:
        return _unbundled(one.data)
    return msgspec.json.decode(one.data) if _is_json(one) else Media(one.data, _joinable("output", media), filename)


def _joinable(name: str, media: str) -> str:
    if media in (FORM_MEDIA, REQUEST_MEDIA, TENSORS_MEDIA, BUNDLE_MEDIA):
        raise InvalidInput(f"{name} is {media}, which can be passed on alone, and be no member of an object")
    return media


def _is_json(one: Payload) -> bool:
    return split_filename(one.content_type)[0] == JSON


def _object(members: Mapping[str, Payload]) -> Payload:
    """The object of these members; their texts are valid JSON, and are not read."""
    texts = [msgspec.json.encode(name) + b":" + one.data for name, one in members.items()]
    return Payload(JSON, b"{" + b",".join(texts) + b"}")


def _bundle(value: Any) -> Payload:
    files: list[Media] = []
    token = secrets.token_hex(16)

    def referred(one: Any) -> Any:
        if isinstance(one, Media):
            files.append(one)
            return reference(len(files) - 1, one, token)
        if isinstance(one, dict):
            return {name: referred(part) for name, part in one.items()}
        return [referred(part) for part in one] if isinstance(one, list) else one

    json = msgspec.json.encode(referred(value))
    return Payload(BUNDLE_MEDIA, encode_bundle(json, files, token))
