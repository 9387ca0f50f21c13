from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import BadRequest
from penstock.loadtest.bodies import from_schema, from_tensors, read_bodies
from penstock.loadtest.generator.connection import RequestBody


def test_json_is_sent_as_it_is() -> None:
    assert read_bodies('{"x": 4}') == [RequestBody(b'{"x": 4}', "application/json")]


def test_json_may_be_longer_than_a_files_name() -> None:
    text = json.dumps({"text": "a" * 5_000})
    assert read_bodies(text) == [RequestBody(text.encode(), "application/json")]


def test_a_file_has_the_media_type_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"\xff\xd8")
    assert read_bodies(f"@{tmp_path / 'cat.jpg'}") == [RequestBody(b"\xff\xd8", "image/jpeg")]


def test_a_folder_is_all_its_files_in_order(tmp_path: Path) -> None:
    for name in ("b.png", "a.json", ".hidden"):
        (tmp_path / name).write_bytes(name.encode())
    assert [(body.data, body.content_type) for body in read_bodies(str(tmp_path))] == [
        (b"a.json", "application/json"),
        (b"b.png", "image/png"),
    ]


def test_each_line_of_a_jsonl_file_is_a_body(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"x": 1}\n\n{"x": 2}\n')
    assert [body.data for body in read_bodies(str(path))] == [b'{"x": 1}', b'{"x": 2}']


@pytest.mark.parametrize(
    ("text", "match"), [("hello", "neither"), ("@nowhere.jpg", "nowhere.jpg"), ("nowhere.jsonl", "cannot be read")]
)
def test_what_cannot_be_sent_is_reported(text: str, match: str) -> None:
    with pytest.raises(BadRequest, match=match):
        read_bodies(text)


def test_an_empty_folder_and_a_broken_line_are_reported(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no files"):
        read_bodies(str(tmp_path))
    (tmp_path / "rows.jsonl").write_text("1\n{")
    with pytest.raises(BadRequest, match="line 2"):
        read_bodies(str(tmp_path / "rows.jsonl"))


def test_an_input_is_made_from_the_schema() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    assert "x" in json.loads(from_schema(schema, "square").data)
    with pytest.raises(BadRequest, match="no input schema"):
        from_schema(None, "square")


def test_tensors_are_zeros_in_the_declared_shapes() -> None:
    inputs = [{"name": "a", "datatype": "FP32", "shape": [-1, 3]}, {"name": "b", "datatype": "BYTES", "shape": [2]}]
    assert json.loads(from_tensors(inputs, "net").data) == {
        "inputs": [
            {"name": "a", "datatype": "FP32", "shape": [1, 3], "data": [0.0, 0.0, 0.0]},
            {"name": "b", "datatype": "BYTES", "shape": [2], "data": ["", ""]},
        ]
    }
