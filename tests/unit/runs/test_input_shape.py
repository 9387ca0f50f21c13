"""A model's schema decides how the cells of a table are read, and which columns are refused before the first row."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
import pytest

from penstock.errors import InvalidInput
from penstock.handlers.schema import reader_for
from penstock.inputs.input_shape import shape_of
from penstock.run import RunSpec
from penstock.runs.sources.opening import open_source

pydantic = pytest.importorskip("pydantic")

DELIMITERS = {"csv": ",", "tsv": "\t"}


@dataclass
class Place:
    x: int


@dataclass
class DataclassInput:
    count: int
    price: float
    flag: bool
    name: str
    maybe: int | None
    near: Place | None
    tags: list[int]
    size: Literal[1, 2]


class TypedDictInput(TypedDict):
    count: int
    price: float
    flag: bool
    name: str
    maybe: int | None
    near: Place | None
    tags: list[int]
    size: Literal[1, 2]


class StructInput(msgspec.Struct):
    count: int
    price: float
    flag: bool
    name: str
    maybe: int | None
    near: Place | None
    tags: list[int]
    size: Literal[1, 2]


class PydanticInput(pydantic.BaseModel):  # type: ignore[name-defined]
    count: int
    price: float
    flag: bool
    name: str
    maybe: int | None
    near: Place | None
    tags: list[int]
    size: Literal[1, 2]


KINDS = [DataclassInput, TypedDictInput, StructInput, PydanticInput, DataclassInput | None]
# By field: cells as people and programs write them, and the value that the model gets.
CELLS: dict[str, list[tuple[str, Any]]] = {
    "count": [("7", 7), ("-1", -1), ("7.0", 7)],
    "price": [("1.5", 1.5), ("2", 2), ("1e3", 1000.0)],
    "flag": [("true", True), ("False", False), ("TRUE", True)],
    "name": [("007", "007"), ("true", "true"), ("", ""), ("a b", "a b"), ("1.5", "1.5")],
    "maybe": [("5", 5), ("", None), ("null", None)],
    "near": [('{"x": 4}', Place(4)), ("", None)],
    "tags": [("[1, 2]", [1, 2]), ("[]", [])],
    "size": [("1", 1), ("2", 2)],
}
PLAIN = {name: cells[0] for name, cells in CELLS.items()}


def read(
    path: Path, header: list[str], records: list[list[str]], schema: Any, columns: dict[str, str]
) -> tuple[list[Any], Any]:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=DELIMITERS[path.suffix[1:]])
        writer.writerows([header, *records])
    spec = RunSpec(model="m", input=str(path), output="none.jsonl", columns=columns)
    with closing(open_source(spec, input_schema=schema)) as source:
        batch = source.read(None, rows=100, size_bytes=1 << 20)
    assert batch is not None
    return batch.inputs, batch.bad


def value_of(made: Any, field: str) -> Any:
    found = made[field] if isinstance(made, dict) else getattr(made, field)
    return Place(found["x"]) if field == "near" and isinstance(found, dict) else found


@pytest.mark.parametrize("suffix", DELIMITERS)
@pytest.mark.parametrize("mapped", [False, True], ids=["whole row", "mapped"])
@pytest.mark.parametrize("field", CELLS)
@pytest.mark.parametrize("kind", KINDS, ids=["dataclass", "TypedDict", "Struct", "pydantic", "optional dataclass"])
def test_cells_become_what_the_schema_of_each_kind_asks_for(
    tmp_path: Path, kind: Any, field: str, mapped: bool, suffix: str
) -> None:
    reader = reader_for(kind)
    columns = {name: f"column of {name}" for name in CELLS} if mapped else {}
    header = [columns.get(name, name) for name in CELLS]
    records = [[{**PLAIN, field: cell}[name][0] for name in CELLS] for cell in CELLS[field]]
    inputs, bad = read(tmp_path / f"in.{suffix}", header, records, reader.schema(), columns)
    assert not bad
    made = [value_of(reader.from_value(each), field) for each in inputs]
    wanted = [value for _, value in CELLS[field]]
    assert made == wanted
    assert list(map(type, made)) == [float if field == "price" and value == 2 else type(value) for value in wanted]


@pytest.mark.parametrize("suffix", DELIMITERS)
@pytest.mark.parametrize(
    ("kind", "cells", "wanted"),
    [
        (int, ["1", "2.0"], [1, 2]),
        (int | None, ["1", ""], [1, None]),
        (float, ["1.5", "2"], [1.5, 2.0]),
        (bool, ["true", "False"], [True, False]),
        (str, ["1", "true"], ["1", "true"]),
        (str | None, ["1", "x"], ["1", "x"]),
        (list[int], ["[1]", "[]"], [[1], []]),
        (Literal["a", "b"], ["a", "b"], ["a", "b"]),
    ],
    ids=str,
)
def test_the_only_column_of_a_table_is_the_bare_value_of_a_model_without_fields(
    tmp_path: Path, kind: Any, cells: list[str], wanted: list[Any], suffix: str
) -> None:
    reader = reader_for(kind)
    inputs, bad = read(tmp_path / f"in.{suffix}", ["any"], [[cell] for cell in cells], reader.schema(), {})
    assert not bad
    assert [reader.from_value(each) for each in inputs] == wanted


@pytest.mark.parametrize(("kind", "cell", "wanted"), [(str, "5", "5"), (int, "5", 5), (bool, "True", True), (Any, "5", 5)])
def test_the_values_of_a_mapping_have_the_type_that_its_schema_names(tmp_path: Path, kind: Any, cell: str, wanted: Any) -> None:
    schema = msgspec.json.schema(dict[str, kind])
    inputs, bad = read(tmp_path / "in.csv", ["a", "b"], [[cell, cell]], schema, {})
    assert (inputs, bad) == ([{"a": wanted, "b": wanted}], {})


def test_a_mistyped_field_is_refused_before_the_first_row_with_the_one_that_was_meant(tmp_path: Path) -> None:
    columns = {"cuont": "a", **{name: "a" for name in CELLS if name != "count"}}
    for kind in KINDS:
        with pytest.raises(InvalidInput, match="no field 'cuont'; did you mean 'count'") as caught:
            read(tmp_path / "in.csv", ["a"], [["1"]], reader_for(kind).schema(), columns)
        assert "its fields" in (caught.value.hint or "")
        assert "no column gives 'count'" in caught.value.message
    (tmp_path / "in.jsonl").write_text(json.dumps({"a": 1}))
    with pytest.raises(InvalidInput, match="did you mean 'count'"):
        open_source(
            RunSpec(model="m", input=str(tmp_path / "in.jsonl"), output="none.jsonl", columns=columns),
            input_schema=reader_for(DataclassInput).schema(),
        )


def test_a_field_that_every_input_needs_is_not_left_out(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"in\.csv: no column gives 'count', which the model needs"):
        read(tmp_path / "in.csv", [n for n in CELLS if n != "count"], [], reader_for(DataclassInput).schema(), {})


def test_fields_of_a_model_that_takes_a_bare_value_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has no fields, and 'x' is mapped") as caught:
        read(tmp_path / "in.csv", ["a"], [["1"]], {"type": "array"}, {"x": "a"})
    assert "--column COLUMN" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"type": "object"},
        {"type": "object", "properties": {"y": {}}, "additionalProperties": True},
        {"anyOf": [{"type": "object", "properties": {"y": {}}}, {"type": "object", "properties": {"x": {}}}]},
        {"$ref": "#/$defs/gone"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"type": "object", "properties": {"x": {}}}, {"properties": {"y": {}}, "required": []}]},
    ],
)
def test_what_the_schema_leaves_open_is_not_refused(tmp_path: Path, schema: Any) -> None:
    inputs, bad = read(tmp_path / "in.csv", ["a", "b"], [["1", "t"]], schema, {"x": "a"})
    assert (inputs, bad) == ([{"x": 1}], {})


def test_columns_that_the_model_ignores_are_taken_and_those_that_it_refuses_are_not(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    assert read(tmp_path / "in.csv", ["x", "other"], [["1", "2"]], schema, {})[0] == [{"x": 1, "other": 2}]
    with pytest.raises(InvalidInput, match="no field 'other'"):
        read(tmp_path / "in.csv", ["x", "other"], [["1", "2"]], {**schema, "additionalProperties": False}, {})


def test_fields_of_several_forms_are_read_as_text_as_soon_as_one_of_them_takes_text() -> None:
    number, text = ({"type": "object", "properties": {"x": {"type": kind}}} for kind in ("integer", "string"))
    assert shape_of({"oneOf": [number, text]}).types_of("x") == {"integer", "string"}
    assert shape_of({"oneOf": [number, {}]}).types_of("x") == frozenset()
