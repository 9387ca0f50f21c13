from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.handlers.example_input import NoExample, example_input


class Row(TypedDict):
    values: list[float]
    kind: Literal["b", "c"]


@dataclass
class Nested:
    rows: list[Row]
    name: Annotated[str, msgspec.Meta(min_length=3)]
    count: Annotated[int, msgspec.Meta(ge=7, lt=9)]
    share: Annotated[float, msgspec.Meta(gt=0.0, le=0.5)]
    pair: tuple[int, str]
    either: int | None
    tags: dict[str, int] = field(default_factory=dict)


@pytest.mark.parametrize("kind", [int, float, str, bool, list[int], dict[str, int], int | str, Row, Nested, list[Nested], None])
def test_the_example_of_a_type_is_read_into_that_type(kind: Any) -> None:
    schema = msgspec.json.schema(kind)
    msgspec.json.decode(msgspec.json.encode(example_input(schema)), type=kind)
    jsonschema_rs.validate(schema, example_input(schema))


def test_an_input_written_into_the_schema_is_preferred() -> None:
    assert example_input({"type": "integer", "examples": [42], "minimum": 1}) == 42
    assert example_input({"type": "string", "default": "x"}) == "x"


def test_a_tensor_has_the_least_length_that_its_schema_asks_for() -> None:
    row = {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
    assert example_input({"type": "array", "items": row}) == [[1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "array"},
        {"$ref": "#/$defs/gone"},
        {"$ref": "#/$defs/node", "$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}},
        {"anyOf": [{}, {"type": "array"}]},
    ],
)
def test_a_schema_that_says_too_little_has_no_example(schema: dict[str, Any]) -> None:
    with pytest.raises(NoExample):
        example_input(schema)


bounds = st.integers(-50, 50)
leaves = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.builds(lambda low, span: {"type": "integer", "minimum": low, "maximum": low + span}, bounds, st.integers(0, 9)),
    st.builds(lambda low, span: {"type": "number", "exclusiveMinimum": low, "maximum": low + span}, bounds, st.integers(1, 9)),
    st.builds(lambda least: {"type": "string", "minLength": least}, st.integers(0, 9)),
)


def containers(children: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.builds(lambda item, least: {"type": "array", "items": item, "minItems": least}, children, st.integers(0, 3))
    fields = st.dictionaries(st.sampled_from("abc"), children)
    objects = fields.map(lambda found: {"type": "object", "properties": found, "required": sorted(found)})
    return arrays | objects | st.lists(children, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts})


@given(st.recursive(leaves, containers, max_leaves=8))
def test_whatever_the_schema_says_the_example_keeps_to_it(schema: dict[str, Any]) -> None:
    jsonschema_rs.validate(schema, example_input(schema))
