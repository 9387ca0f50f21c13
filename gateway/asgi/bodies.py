"""JSON bodies: whether one is well-formed and shallow, and whether its value fits the model's schema. Pure."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator, Mapping
from itertools import accumulate, chain, islice
from typing import Any

import jsonschema_rs
import msgspec
import orjson

from penstock.errors import BadRequest, InvalidInput
from penstock.inputs.input_shape import Bounds, misfit, ragged, shape_fits, wanted

# Parsing more would block the event loop for milliseconds. Larger bodies are only checked for well-formedness there.
WHOLE_PARSE_BYTES = 256 * 1024
MAX_VALUES = 500_000
MAX_ERRORS = 10
MAX_ERROR_CHARS = 200
MAX_FORMS = 4
# Possessive quantifiers and an optional closing quote keep the time linear on any bytes.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_ONLY_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_PLAIN_TYPES = ("number", "integer", "boolean", "string")
UNBUILT = object()
_raw = msgspec.json.Decoder(msgspec.Raw)
MAX_JSON_DEPTH = 64


def parse_json(body: bytes, *, max_depth: int = MAX_JSON_DEPTH) -> Any:
    """The value, or `UNBUILT` for a body too large to parse on the event loop.

    Raises `BadRequest` for JSON that is malformed, is nested too deep, or names a member of an object twice.
    """
    large = len(body) > WHOLE_PARSE_BYTES
    try:
        value = _check_large(body) if large else orjson.loads(body)
    except (orjson.JSONDecodeError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {_reason(error)}") from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    if body.count(b"[") + body.count(b"{") > max_depth and is_deeper_than(body, max_depth):
        raise _too_deep(max_depth)
    if value is not UNBUILT:
        refuse_repeats(body, value)
    return value


def refuse_repeats(body: bytes, value: Any) -> None:
    """Raises `BadRequest` for an object that names a member twice: parsers differ in which value they take."""
    colons = body.count(b":")
    if colons < 2:
        return
    # The reserialized value lacks the repeated member and so at least one colon, unless an escaped colon replaces it.
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


def is_deeper_than(body: bytes, limit: int) -> bool:
    """Whether well-formed JSON nests deeper than `limit`. All steps run in C."""
    brackets = _STRING.sub(b"", body).translate(None, _ONLY_BRACKETS)
    # Most brackets of a real body are innermost pairs: removing them leaves little to walk.
    for level in range(3):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return level + 1 > limit
    steps = array("b", brackets.translate(_STEPS))
    return max(accumulate(steps)) + 3 > limit


def is_cheap_to_build(body: bytes) -> bool:
    """False for a body with too many small values, which would block the process. Only the worker checks such a body."""
    return body.count(b",") < MAX_VALUES


def check_schema(value: Any, validator: jsonschema_rs.Validator, schema: Mapping[str, Any]) -> None:
    """Raises `InvalidInput` with a JSON Pointer per fault, at most ten; `validator` was built from `schema`."""
    if validator.is_valid(value):
        return
    misfits = [{"pointer": json_pointer(path), "detail": fault} for path, fault in shape_faults(value, schema)]
    faults = misfits or (shown for fault in validator.iter_errors(value) for shown in _describe(fault))
    raise InvalidInput("The input does not fit the model's schema", errors=list(islice(faults, MAX_ERRORS)))


def _describe(fault: jsonschema_rs.ValidationError) -> Iterator[dict[str, str]]:
    """The fault in words. For `anyOf`: the faults of the form with the right type, or that no form fits."""
    forms: list[list[jsonschema_rs.ValidationError]] = getattr(fault.kind, "context", None) or []
    right_type = next((form for form in forms if not any(_has_other_type(inner, fault) for inner in form)), None)
    if right_type is not None:
        for inner in right_type:
            yield from _describe(inner)
        return
    types = dict.fromkeys(inner.message for form in forms for inner in form if _has_other_type(inner, fault))
    words = ", or ".join(_shortened(message) for message in [*types][:MAX_FORMS] or [fault.message])
    yield {"pointer": json_pointer(fault.instance_path), "detail": words}


def _has_other_type(inner: jsonschema_rs.ValidationError, whole: jsonschema_rs.ValidationError) -> bool:
    return inner.kind.name == "type" and inner.instance_path == whole.instance_path


def _shortened(message: str) -> str:
    """The message without its middle: it begins with the value and ends with the rule."""
    return message if len(message) <= MAX_ERROR_CHARS else f"{message[:60]} ... {message[-(MAX_ERROR_CHARS - 65) :]}"


def shape_faults(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[list[str | int], str]]:
    """Path and sentence for each array in `value` whose shape does not fit its schema; empty for other faults.

    One sentence on the shape replaces the schema's own faults, which would be one per row.
    """
    for path, name, rows, own in _arrays(value, schema):
        bounds = _bounds(own)
        fault = _fault(name, rows, bounds) if bounds and isinstance(rows, list) else ""
        if fault:
            yield path, fault


def _arrays(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[list[str | int], str, Any, Mapping[str, Any]]]:
    """Path, name, value and schema of each input: the fields of an object, or a bare list as a whole."""
    forms = [form for form in schema.get("anyOf", [schema]) if isinstance(form, dict)]
    fields: dict[str, Any] = next((form["properties"] for form in forms if isinstance(form.get("properties"), dict)), {})
    if isinstance(value, dict):
        for name, own in fields.items():
            if name in value and isinstance(own, dict):
                yield [name], name, value[name], own
        return
    bare = next((form for form in forms if form.get("type") == "array"), None)
    if bare is not None:
        yield [], next(iter(fields), "the input"), value, bare


def _bounds(schema: Mapping[str, Any]) -> Bounds:
    """Minimum and maximum length by dimension, outermost first; empty unless the schema describes arrays of plain values."""
    bounds = []
    inner: Any = schema
    while isinstance(inner, dict) and inner.get("type") == "array":
        bounds.append((inner.get("minItems", 0), inner.get("maxItems")))
        inner = inner.get("items")
    return bounds if isinstance(inner, dict) and inner.get("type") in _PLAIN_TYPES else []


def _fault(name: str, value: list[Any], bounds: Bounds) -> str:
    shape = _shape(value)
    if shape is not None:
        return "" if shape_fits(shape, bounds) else misfit(name, shape, bounds)
    # If the length of rows is not limited, rows may differ: the shape is not the fault.
    fixed = any(low == high for low, high in bounds[1:])
    return f"{ragged(name)}; the model takes {wanted(bounds)}" if fixed else ""


def _shape(value: list[Any]) -> list[int] | None:
    """None if rows differ in length, or if rows and plain values are mixed."""
    shape: list[int] = []
    level: list[Any] = [value]
    while level and any(isinstance(row, list) for row in level):
        lengths = {len(row) if isinstance(row, list) else -1 for row in level}
        if len(lengths) > 1:
            return None
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return shape


def check_large(body: bytes, validator: jsonschema_rs.Validator, schema: Mapping[str, Any]) -> None:
    """As `check_schema`, but builds the value first, which takes long: call it in a thread."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not valid JSON: {_reason(error)}") from None
    refuse_repeats(body, value)
    check_schema(value, validator, schema)


def json_pointer(path: list[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
