"""The columns of a run are compared with the beginning of its input before the run is stored."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.gateway.runs.columns import check_columns

OBJECT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "number"}}, "required": ["x"]}
CSV = b"price,size\n1,2\n"
LINES = b'{"price": 1}\n{"size": 2}\nnot json\n'


def check(
    path: Path,
    kind: str,
    columns: dict[str, str] | None = None,
    carry: tuple[str, ...] = (),
    schema: dict[str, Any] | None = None,
) -> None:
    check_columns(path, kind, columns or {}, carry, schema=schema)


def refused(*args: Any, **named: Any) -> tuple[list[str], str]:
    with pytest.raises(InvalidInput) as caught:
        check(*args, **named)
    assert caught.value.errors
    return [fault["pointer"] for fault in caught.value.errors], f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(("kind", "data"), [("csv", CSV), ("tsv", CSV.replace(b",", b"\t")), ("jsonl", LINES)])
def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path, kind: str, data: bytes) -> None:
    path = tmp_path / "in"
    path.write_bytes(data)
    check(path, kind, {"x": "price"}, ("size", "*"), schema=OBJECT)
    pointers, said = refused(path, kind, {"x": "pirce"}, ("sizes",))
    assert pointers == ["/columns/x", "/carry/0"]
    assert "the input has no column 'pirce'; did you mean 'price'?" in said
    assert "The columns of the input are 'price', 'size'." in said


def test_a_packed_file_and_one_with_a_mark_of_its_coding_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "in.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + CSV))
    check(path, "csv", {"x": "price"})
    assert refused(path, "csv", {"x": "cost"})[0] == ["/columns/x"]


def test_fields_that_the_model_does_not_have_or_needs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(CSV)
    pointers, said = refused(path, "csv", {"xx": "price"}, schema=OBJECT)
    assert pointers == ["/columns"]
    assert "no field 'xx'; did you mean 'x'?" in said
    assert "The model's fields are 'x', 'y'" in said
    assert "no column gives 'x'" in refused(path, "csv", schema=OBJECT)[1]
    assert "no fields" in refused(path, "csv", {"x": "price"}, schema={"type": "string"})[1]
    check(path, "csv", {"": "price"}, schema={"type": "string"})


def test_a_text_file_has_no_columns(tmp_path: Path) -> None:
    assert refused(tmp_path / "in.txt", "text", {"x": "a"})[0] == ["/columns"]
    assert refused(tmp_path / "in.txt", "text", carry=("a",))[0] == ["/carry"]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("csv", b""),
        ("csv", b'"open,\n' + b"x" * 10),
        ("csv", b"a" * (1 << 19)),
        ("jsonl", b"[1]\n2\n"),
        ("jsonl", b"\xff\xfe"),
        ("parquet", b"PAR1"),
        ("", CSV),
    ],
)
def test_what_shows_no_columns_is_left_to_the_runner(tmp_path: Path, kind: str, data: bytes) -> None:
    path = tmp_path / "in"
    path.write_bytes(data)
    check(path, kind, {"x": "price"})
    path.with_suffix(".gz").write_bytes(data)
    check(path.with_suffix(".gz"), kind, {"x": "price"})
    check(tmp_path, kind, {"x": "price"})
