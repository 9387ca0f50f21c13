from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.handlers.contract import Failure
from penstock.handlers.media import codec_for, encode
from penstock.workers.child.runner import refusal
from penstock.workers.child.shards.rows import read_rows, write_rows

JSON = "application/json"


@dataclass
class Point:
    x: int
    y: float = 0.0


def read(item_type: Any, rows: list[Any], media: str = JSON) -> list[Any]:
    """Return the value of each row, or the code of its refusal."""
    values = read_rows(codec_for(item_type), media, rows, refusal)
    return [value.code if isinstance(value, Failure) else value for value in values]


def test_rows_become_values_of_the_item_type_and_bad_ones_are_refused_alone() -> None:
    assert read(Point, [{"x": 1}, {"x": 2, "y": 3}]) == [Point(1), Point(2, 3.0)]
    assert read(Point, [{"x": 1}, {"x": "2"}, 7]) == [Point(1), "invalid_input", "invalid_input"]
    assert read(str, ["a", "b"]) == ["a", "b"]
    assert read(str, ["a", 2, None]) == ["a", "invalid_input", "invalid_input"]


def test_a_refusal_names_the_place_within_its_row() -> None:
    [_, failure] = read_rows(codec_for(Point), JSON, [{"x": 1}, {"x": "2"}], refusal)
    assert failure.message == codec_refusal(Point, b'{"x":"2"}')


def codec_refusal(item_type: Any, data: bytes) -> str:
    """Return the failure that an online job gets for the same input."""
    with pytest.raises(InvalidInput) as error:
        codec_for(item_type).decode(JSON, data)
    return str(error.value)


def test_a_model_of_bytes_takes_bytes_and_the_utf_8_of_text() -> None:
    assert read(bytes, [b"\xff", "é", {"a": 1}]) == [b"\xff", "é".encode(), b'{"a":1}']


def test_rows_of_another_media_type_are_read_as_its_bodies() -> None:
    assert read(str, [b"caf\xc3\xa9", b"\xff"], "text/plain") == ["café", "invalid_input"]
    assert read(bytes, [b"\x89PNG"], "image/png") == [b"\x89PNG"]
    assert read(str, [b"x"], "image/png") == ["unsupported_media_type"]
    assert read(bytes, ["not bytes"], "image/png") == ["invalid_input"]


def write(values: list[Any]) -> list[Any]:
    def refuse(error: Exception) -> Failure:
        return Failure(str(error), "refused")

    return [value.code if isinstance(value, Failure) else value for value in write_rows(values, refuse)]


def test_outputs_become_plain_values_and_bad_ones_fail_alone() -> None:
    assert write([Point(1, 2.0), [1, None], "a"]) == [{"x": 1, "y": 2.0}, [1, None], "a"]
    assert write([1.0, float("nan"), object(), "\ud800"]) == [1.0] + ["refused"] * 3
    assert write([b"a", memoryview(b"b"), 1]) == [b"a", b"b", 1]


def test_arrays_become_lists() -> None:
    numpy = pytest.importorskip("numpy")
    outputs = write([numpy.array([1.0, 2.0]), numpy.float32(0.5), {"v": numpy.arange(2)}])
    assert outputs == [[1.0, 2.0], 0.5, {"v": [0, 1]}]
    single = numpy.array([0.1], dtype=numpy.float32)
    assert write([single]) == [json.loads(encode(single)[1])] == [[0.1]]
    assert write([numpy.array([numpy.nan])]) == ["refused"]
