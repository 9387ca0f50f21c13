"""Nested lists of a wrong shape told in one sentence per input, where the schema would tell one fault per row. Pure.

Looked at only once the schema has refused the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from penstock.shapes import Bounds, misfit, ragged, shape_fits, wanted

_VALUES = ("number", "integer", "boolean", "string")


def shape_faults(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[list[str | int], str]]:
    """Path and sentence for each array in `value` whose shape its schema does not take; none if that is not what is wrong."""
    for path, name, given, own in _arrays(value, schema):
        bounds = _bounds(own)
        fault = _fault(name, given, bounds) if bounds and isinstance(given, list) else ""
        if fault:
            yield path, fault


def _arrays(value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[list[str | int], str, Any, Mapping[str, Any]]]:
    """Path, name, value and schema of each input: the fields of an object, or the whole of a bare list."""
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
    """By dimension, from the outside in; empty for what is no array of plain values."""
    found = []
    inner: Any = schema
    while isinstance(inner, dict) and inner.get("type") == "array":
        found.append((inner.get("minItems", 0), inner.get("maxItems")))
        inner = inner.get("items")
    return found if isinstance(inner, dict) and inner.get("type") in _VALUES else []


def _fault(name: str, value: list[Any], bounds: Bounds) -> str:
    shape = _shape(value)
    if shape is not None:
        return "" if shape_fits(shape, bounds) else misfit(name, shape, bounds)
    # Rows of free lengths may differ; then something else is wrong.
    fixed = any(low == high for low, high in bounds[1:])
    return f"{ragged(name)}; the model takes {wanted(bounds)}" if fixed else ""


def _shape(value: list[Any]) -> list[int] | None:
    """None where rows differ in length, or stand beside plain values."""
    shape: list[int] = []
    level: list[Any] = [value]
    while level and any(isinstance(row, list) for row in level):
        lengths = {len(row) if isinstance(row, list) else -1 for row in level}
        if len(lengths) > 1:
            return None
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return shape
