"""Arrays as outputs keep their precision in any memory layout, and are refused if JSON cannot represent a value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import HandlerContractError
from penstock.handlers.media import encode

numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint64", "bool"])
def test_an_array_comes_back_exactly_as_it_was(dtype: str) -> None:
    array = numpy.linspace(-3, 3, 24).reshape(2, 3, 4).astype(dtype)
    _, data = encode({"vectors": array})
    assert (numpy.array(json.loads(data)["vectors"], dtype=dtype) == array).all()


def test_a_float32_takes_no_more_digits_than_it_has() -> None:
    assert encode(numpy.array([0.1], dtype="float32"))[1] == b"[0.1]"


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(12.0).reshape(3, 4)[:, ::2],
        numpy.arange(4, dtype=">f4"),
        numpy.array(3.5),
        numpy.array(["a", "b"]),
        numpy.zeros((0, 3)),
    ],
    ids=["not in one piece", "foreign byte order", "no dimension", "texts", "empty"],
)
def test_other_layouts_are_written_all_the_same(array: Any) -> None:
    assert json.loads(encode(array)[1]) == array.tolist()


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_what_is_no_number_is_refused_with_its_place(bad: str) -> None:
    array = numpy.array([[1.0, float(bad)]], dtype="float32")
    with pytest.raises(HandlerContractError, match=f"{bad} at /scores/0/1"):
        encode({"scores": array})
