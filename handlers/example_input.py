"""Makes an input that fits a JSON Schema: a model that declares no sample is warmed up with it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_DEPTH = 16
# The keys whose value is an input itself; what the author wrote as an example comes first.
_GIVEN = ("examples", "default", "const", "enum")


class NoExample(Exception):
    """The schema says too little, or uses a part of JSON Schema that is not supported here; the message names the place."""


def example_input(schema: Mapping[str, Any]) -> Any:
    """The smallest input that the schema's types, bounds and required fields admit; raises `NoExample`.

    `pattern`, `format`, `not` and overlapping branches of `oneOf` are ignored. The model's own validation may therefore refuse
    the input.
    """
    return _ExampleMaker(schema).make(schema, 0)


class _ExampleMaker:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def make(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            raise NoExample("the schema is true, empty or nested in itself")
        if "$ref" in schema:
            return self.make(self._resolved(schema["$ref"]), depth + 1)
        for key in _GIVEN:
            if key in schema:
                value = schema[key]
                return value[0] if key in ("examples", "enum") else value
        if isinstance(schema.get("allOf"), list):
            return self.make({**schema, "allOf": None, **_merged(schema["allOf"])}, depth + 1)
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self._first(schema[key], depth + 1)
        return self._typed(schema, depth)

    def _resolved(self, ref: str) -> Any:
        schema: Any = self._root
        for part in ref.removeprefix("#").strip("/").split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(schema, Mapping) or key not in schema:
                raise NoExample(f"the reference {ref} leads nowhere")
            schema = schema[key]
        return schema

    def _first(self, branches: list[Any], depth: int) -> Any:
        """An example of the first branch that has one; null only if there is no other."""
        for branch in sorted(branches, key=lambda branch: branch == {"type": "null"}):
            try:
                return self.make(branch, depth)
            except NoExample:
                continue
        raise NoExample("none of the alternatives has an example")

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type", "object" if "properties" in schema else None)
        kind = kind[0] if isinstance(kind, list) else kind
        makers: dict[Any, Callable[[], Any]] = {
            "null": lambda: None,
            "boolean": lambda: False,
            "integer": lambda: int(_number(schema)),
            "number": lambda: float(_number(schema)),
            "string": lambda: _text(schema),
            "array": lambda: self._array(schema, depth),
            "object": lambda: self._object(schema, depth),
        }
        if kind not in makers:
            raise NoExample("a part of the schema has no type")
        return makers[kind]()

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        fixed = [self.make(item, depth + 1) for item in schema.get("prefixItems", [])]
        missing = max(1, int(schema.get("minItems", 1))) - len(fixed)
        if schema.get("maxItems") == 0 or missing <= 0 or schema.get("items") is False:
            return fixed
        # One element is made and repeated, because a tensor's schema may ask for a million of them.
        return fixed + [self.make(schema.get("items"), depth + 1)] * missing

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        fields = schema.get("properties", {})
        return {name: self.make(fields.get(name), depth + 1) for name in schema.get("required", [])}


def _text(schema: Mapping[str, Any]) -> str:
    if "contentEncoding" in schema:
        raise NoExample("a file cannot be made up")
    return "a" * max(1, int(schema.get("minLength", 1)))


def _merged(parts: list[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        merged |= dict(part)
    return merged


def _number(schema: Mapping[str, Any]) -> float:
    """The number nearest to 1 within the bounds; a multiple of `multipleOf` if the schema has it."""
    low = float(schema.get("minimum", schema.get("exclusiveMinimum", "-inf")))
    high = float(schema.get("maximum", schema.get("exclusiveMaximum", "inf")))
    step = float(schema.get("multipleOf", 1))
    number = min(max(1.0, low), high)
    if number == schema.get("exclusiveMinimum"):
        number += step
    if number == schema.get("exclusiveMaximum"):
        number -= step
    return number if "multipleOf" not in schema else -(-number // step) * step
