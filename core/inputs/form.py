"""A form: the fields and files of one request, stored as one input, and read by the schema of the model. Pure.

A gateway and a model's process read forms with the same code, so that both come to the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from penstock.errors import InvalidInput
from penstock.inputs.file import OCTETS, File
from penstock.job import FORM_MEDIA, split_media_type

JSON = "application/json"
# The field that holds the whole input, for models whose input is no object.
WHOLE_FIELD = "data"
_SHOWN_NAME_CHARS = 80
_MOST_REFS = 16
_ANYTHING: dict[str, Any] = {}
_BASE64 = "base64"
_CHOICES = ("anyOf", "oneOf", "allOf")


class FormPart(Struct, array_like=True, gc=False):
    """One part of a form. `filename` is None for a field; `content_type` is empty if the sender named none."""

    name: str
    data: bytes
    content_type: str = ""
    filename: str | None = None

    @property
    def is_file(self) -> bool:
        return self.filename is not None

    @property
    def media(self) -> str:
        """The full media type of the part as a body of its own: a field is JSON unless it says otherwise."""
        if self.content_type and self.content_type.lower() != "text/plain":
            return self.content_type
        return OCTETS if self.is_file else JSON

    def file(self) -> File:
        return File(self.data, self.content_type or OCTETS, self.filename or "")


# D73: docs/design/gateway.md
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[FormPart])


def encode_form(parts: Sequence[FormPart]) -> bytes:
    return _encoder.encode(parts)


def decode_form(data: bytes) -> list[FormPart]:
    """Raises `InvalidInput` for anything that `encode_form` did not write."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"these {len(data)} bytes are no form ({FORM_MEDIA}): {error}") from error


@dataclass(frozen=True, slots=True)
class FormFields:
    """The fields that a form may have: the schema of each, and that of all others (None: there are no others)."""

    root: Mapping[str, Any]
    named: dict[str, Any]
    others: Any = None

    def schema_of(self, name: str) -> Any:
        """None for a field that the model does not have."""
        return self.named.get(name, self.others)


def form_fields(schema: Mapping[str, Any] | None) -> FormFields | None:
    """The fields of an input that is an object. None for every other input: a form then holds the whole input in one part."""
    root = schema or _ANYTHING
    objects = [form for form in choices_of(root, root) if form.get("type") == "object" or "properties" in form]
    if not objects:
        return None
    named = {name: own for form in reversed(objects) for name, own in form.get("properties", {}).items()}
    return FormFields(root, named, next((others for others in map(_others, objects) if others is not None), None))


def is_file_schema(schema: Mapping[str, Any] | None) -> bool:
    """Whether the whole input is a file."""
    root = schema or _ANYTHING
    return any(_is_file(choice) and "contentMediaType" in choice for choice in choices_of(root, root))


def names_files(schema: Any) -> bool:
    """Whether a `File` stands anywhere in the schema of an input."""
    if isinstance(schema, Mapping):
        return "contentMediaType" in schema or any(map(names_files, schema.values()))
    return isinstance(schema, list) and any(map(names_files, schema))


Json = Callable[[bytes], Any]


def read_form(
    parts: Sequence[FormPart], fields: FormFields | None, *, takes: Callable[[str], bool], read_json: Json
) -> FormPart | dict[str, Any]:
    """The part that is the whole input, or the object that the form stands for, with a `File` for each file.

    `takes` says whether the model takes a body of a media type. Raises `InvalidInput` with the name of each part that the model
    has no place for: none is dropped.
    """
    whole = _whole(parts, fields, takes)
    if whole is not None:
        return whole
    if fields is None:
        raise _misfit([(part.name, _NO_OBJECT) for part in _superfluous(parts)])
    value: dict[str, Any] = {}
    faults: list[tuple[str, str]] = []
    for name, own in _by_name(parts).items():
        try:
            value[name] = _FieldReader(fields, read_json).read(name, own)
        except InvalidInput as error:
            faults.append((name, error.message))
    if faults:
        raise _misfit(faults)
    return value


_NO_OBJECT = f"the model takes one file, or one field {WHOLE_FIELD!r}, and nothing beside it"


def _whole(parts: Sequence[FormPart], fields: FormFields | None, takes: Callable[[str], bool]) -> FormPart | None:
    if len(parts) != 1:
        return None
    [part] = parts
    media = split_media_type(part.media)[0]
    if fields is None:
        return part if part.is_file or part.name == WHOLE_FIELD else None
    is_named = part.name in fields.named or fields.others is not None
    return part if takes(media) and (part.is_file or part.name == WHOLE_FIELD) and not (is_named and media == JSON) else None


def _superfluous(parts: Sequence[FormPart]) -> list[FormPart]:
    """The parts beside the input: all but the first file, or else all but the first field with the right name."""
    kept = next((part for part in parts if part.is_file), None)
    kept = kept or next((part for part in parts if part.name == WHOLE_FIELD), None)
    return [part for part in parts if part is not kept]


def _by_name(parts: Sequence[FormPart]) -> dict[str, list[FormPart]]:
    by_name: dict[str, list[FormPart]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    return by_name


@dataclass(frozen=True, slots=True)
class _FieldReader:
    """Reads the parts of one name as the value of one field."""

    fields: FormFields
    read_json: Json

    def read(self, name: str, parts: list[FormPart]) -> Any:
        schema = self.fields.schema_of(name)
        if schema is None:
            raise InvalidInput(f"the model has no such field; it has {', '.join(self.fields.named) or 'none'}")
        choices = list(choices_of(self.fields.root, schema))
        array = next((choice for choice in choices if choice.get("type") == "array"), None)
        if array is not None and (len(parts) > 1 or not (_takes_text(choices) or _takes_file(choices))):
            return self._array(parts, array.get("items", _ANYTHING))
        if len(parts) > 1:
            raise InvalidInput(f"it stands in the form {len(parts)} times, and the model takes one value")
        return self._value(parts[0], choices)

    def _array(self, parts: list[FormPart], items: Any) -> list[Any]:
        """Each part is an element; a single text may also be the whole array in JSON."""
        choices = list(choices_of(self.fields.root, items))
        values = [self._value(part, choices) for part in parts]
        return values[0] if len(values) == 1 and isinstance(values[0], list) else values

    def _value(self, part: FormPart, choices: list[Any]) -> Any:
        media = split_media_type(part.content_type)[0]
        if part.is_file and _takes_file(choices):
            return part.file()
        if media == JSON:
            return self._json(part.data)
        if part.is_file and not (media.startswith("text/") and _takes_text(choices)):
            raise InvalidInput("it is a file, and the model takes no file there")
        if _takes_text(choices) or _takes_file(choices):
            return _text(part.data)
        return self._json(part.data)

    def _json(self, data: bytes) -> Any:
        try:
            return self.read_json(data)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            shown = data[:_SHOWN_NAME_CHARS].decode("utf-8", "replace")
            raise InvalidInput(f"{shown!r} cannot be read as JSON ({error}), and the model takes no text there") from error


def choices_of(root: Mapping[str, Any], schema: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The alternatives that a schema has, with their references followed."""
    if not isinstance(schema, Mapping) or depth > _MOST_REFS:
        return
    if "$ref" in schema:
        yield from choices_of(root, _resolved(root, schema["$ref"]), depth + 1)
        return
    inner = [choice for key in _CHOICES for choice in schema.get(key, ())]
    if not inner:
        yield schema
    for choice in inner:
        yield from choices_of(root, choice, depth + 1)


def _resolved(root: Mapping[str, Any], ref: str) -> Any:
    schema: Any = root
    for step in ref.removeprefix("#").strip("/").split("/"):
        schema = schema.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(schema, Mapping) else None
    return schema


def _others(form: Mapping[str, Any]) -> Any:
    """The schema of fields that the object does not name; None if it takes no others.

    JSON may have more members than a class has fields, because they are ignored there. A form may not, unless the schema
    says that it may, or names no field at all.
    """
    others = form.get("additionalProperties", None if form.get("properties") else True)
    if others is True:
        return _ANYTHING
    return others if isinstance(others, Mapping) else None


def _is_file(choice: Mapping[str, Any]) -> bool:
    return choice.get("contentEncoding") == _BASE64


def _takes_file(choices: Sequence[Mapping[str, Any]]) -> bool:
    return any(_is_file(choice) or _is_anything(choice) for choice in choices)


def _takes_text(choices: Sequence[Mapping[str, Any]]) -> bool:
    return any(not _is_file(choice) and _is_text(choice) for choice in choices)


def _is_text(choice: Mapping[str, Any]) -> bool:
    kind, given = choice.get("type"), [*choice.get("enum", ()), choice.get("const")]
    named = kind == "string" or (isinstance(kind, list) and "string" in kind)
    return named or _is_anything(choice) or any(isinstance(value, str) for value in given)


def _is_anything(choice: Mapping[str, Any]) -> bool:
    return not {"type", "enum", "const", "properties", "items"} & choice.keys()


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"it is no text in UTF-8: {error.reason}") from error


def _misfit(faults: Sequence[tuple[str, str]]) -> InvalidInput:
    shown = [(name[:_SHOWN_NAME_CHARS], detail) for name, detail in faults]
    errors = [{"pointer": "/" + name.replace("~", "~0").replace("/", "~1"), "detail": detail} for name, detail in shown]
    text = "; ".join(f"{name!r}: {detail}" for name, detail in shown)
    return InvalidInput(f"the form does not fit the model's schema: {text}", errors=errors)
