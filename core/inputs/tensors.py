"""Tensors as the plain input that they stand for, by the model's schema: an object with a field per tensor, or one value. Pure.

A gateway and a model's process read tensors with the same code, so that both come to the same verdict, as with forms.
"""

# D83: docs/design/protocols.md
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.errors import InvalidInput
from penstock.inputs.file import OCTETS, File
from penstock.inputs.form import FormFields, choices_of, form_fields
from penstock.job import split_media_type
from penstock.tensors.tensor import TEXTS, Tensor, nested, numbers_of, texts_of

JSON = "application/json"
# The tensor that is the whole input, for models whose input is no object.
WHOLE_TENSOR = "input"
_SHOWN = 80
Schema = Mapping[str, Any]


def plain_input(tensors: Sequence[Tensor], schema: Schema | None) -> Any:
    """The input that these tensors stand for, with a `File` for each file.

    Raises `InvalidInput` for a tensor that the model has no place for.
    """
    fields = form_fields(schema)
    if fields is None:
        return _whole(tensors, schema)
    _refuse_unknown(tensors, fields)
    return {tensor.name: _value(tensor, fields.root, fields.schema_of(tensor.name)) for tensor in tensors}


def whole_bytes(tensors: Sequence[Tensor]) -> File:
    """The one element of the one tensor, for models that take bytes. Raises `InvalidInput` if it is not that."""
    one = tensors[0] if len(tensors) == 1 else None
    elements = texts_of(one) if one is not None and one.datatype == TEXTS else []
    if one is None or len(elements) != 1:
        raise InvalidInput(f"the model takes bytes: send one tensor of BYTES with one element, named {WHOLE_TENSOR!r}")
    return File(elements[0], one.content_type or OCTETS)


def names_refused(tensors: Sequence[Tensor]) -> str:
    """Why these names of tensors cannot be in one request; empty if they can."""
    names = [tensor.name for tensor in tensors]
    twice = next((name for index, name in enumerate(names) if name in names[:index]), None)
    return "" if twice is None else f"two tensors are named {twice[:_SHOWN]!r}"


def _whole(tensors: Sequence[Tensor], schema: Schema | None) -> Any:
    root = schema or {}
    if len(tensors) == 1 and (schema or tensors[0].name in (WHOLE_TENSOR, "")):
        return _value(tensors[0], root, root)
    if schema:
        raise InvalidInput(f"the model takes one tensor, named {WHOLE_TENSOR!r}, and the request has {len(tensors)}")
    return {tensor.name: _value(tensor, root, root) for tensor in tensors}


def _refuse_unknown(tensors: Sequence[Tensor], fields: FormFields) -> None:
    for tensor in tensors:
        if fields.schema_of(tensor.name) is None:
            known = ", ".join(fields.named) or "none"
            raise InvalidInput(f"the model has no input {tensor.name[:_SHOWN]!r}; it has {known}")


def _value(tensor: Tensor, root: Schema, schema: Any) -> Any:
    choices = list(choices_of(root, schema))
    count = 1
    for size in tensor.shape:
        count *= size
    if tensor.datatype != TEXTS:
        elements = numbers_of(tensor)
    elif count == 1 and _is_json(tensor, root, choices):
        return _parsed(tensor.name, texts_of(tensor)[0])
    else:
        elements = [_text(tensor, text, _innermost(root, choices)) for text in texts_of(tensor)]
    takes_list = any(choice.get("type") == "array" or _is_anything(choice) for choice in choices)
    return elements[0] if count == 1 and not takes_list else nested(elements, tensor.shape)


def _is_json(tensor: Tensor, root: Schema, choices: Sequence[Schema]) -> bool:
    """Whether the one element is JSON: its content type says so, or the model takes neither texts nor files there."""
    if tensor.content_type:
        return split_media_type(tensor.content_type)[0] == JSON
    return not any(_is_anything(choice) or choice.get("type") == "string" for choice in _innermost(root, choices))


def _innermost(root: Schema, choices: Sequence[Schema]) -> list[Schema]:
    """What the elements of lists in lists may be."""
    innermost = list(choices)
    for _ in range(8):
        items = [choice.get("items", {}) for choice in innermost if choice.get("type") == "array"]
        if not items:
            break
        innermost = [choice for item in items for choice in choices_of(root, item)]
    return innermost


def _text(tensor: Tensor, data: bytes, choices: Sequence[Schema]) -> Any:
    if any("contentEncoding" in choice for choice in choices):
        return File(data, tensor.content_type or OCTETS)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"tensor {tensor.name[:_SHOWN]!r} has an element that is no text in UTF-8: {error.reason}") from None


def _parsed(name: str, data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidInput(f"tensor {name[:_SHOWN]!r} has an element that cannot be read as JSON: {error}") from None


def _is_anything(choice: Schema) -> bool:
    return not {"type", "enum", "const", "properties", "items"} & choice.keys()
