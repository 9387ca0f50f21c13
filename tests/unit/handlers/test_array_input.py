from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from penstock.errors import InvalidInput
from penstock.handlers.array_input import read_array
from penstock.handlers.load import load
from penstock.handlers.media import plain_all
from penstock.handlers.runtimes.contract import Port
from penstock.workers.child import warmup


def read(dtype: str, value: Any) -> Any:
    return read_array(Port("x", dtype, (None,)), value).tolist()


def refusal(dtype: str, value: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(dtype, value)
    return caught.value.message.removeprefix(f"x cannot be read as {dtype}: it holds ")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_unsigned_numbers_are_read_and_bounded(dtype: str) -> None:
    """Regression: models with an unsigned input refused all JSON, because numpy does not cast int64 to uint8 by default."""
    limit = int(np.iinfo(dtype).max)
    assert read(dtype, [0, 1, limit]) == [0, 1, limit]
    assert refusal(dtype, [0, -1]) == f"-1, which is outside 0 to {limit}"
    assert refusal(dtype, [0, limit + 1]).endswith(
        "beyond 64 bits" if dtype == "uint64" else f"{limit + 1}, which is outside 0 to {limit}"
    )


@pytest.mark.parametrize("element", [TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64])
def test_a_model_of_unsigned_numbers_answers_and_is_warmed_up(tmp_path: Path, element: int) -> None:
    ports = [helper.make_tensor_value_info("pixels", element, ["n", 4]), helper.make_tensor_value_info("y", 1, ["n", 4])]
    graph = helper.make_graph([helper.make_node("Cast", ["pixels"], ["y"], to=1)], "cast", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "cast.onnx")
    loaded = load(str(tmp_path / "cast.onnx"), "cast")
    assert loaded.preprocess is not None
    (output,) = loaded.inference(loaded.preprocess([[0, 1, 2, 255]]))
    assert output["y"].tolist() == [0, 1, 2, 255]
    assert warmup.warm_up(loaded, [1, 2], budget_s=60).note == ""


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_whole_numbers_may_be_written_as_fractions(dtype: str) -> None:
    """`integer` of the published schema admits 1.0. Regression: the worker refused 1.0 as "other or larger values"."""
    assert read(dtype, [1.0, 2]) == [1, 2]
    assert refusal(dtype, [1, 1.5]) == "1.5, which is no whole number"
    assert refusal(dtype, [1.0, float("inf")]) == "inf, which is no whole number"
    assert refusal(dtype, [1.0, float("nan")]) == "nan, which is no whole number"


@pytest.mark.parametrize("value", [[2.0**53], [1.0, 2**53 + 1], [-(2.0**53), 0]])
def test_a_whole_number_that_may_have_lost_digits_as_a_fraction_is_refused(value: list[float]) -> None:
    assert refusal("int64", value).startswith("whole numbers beyond 9007199254740991 written as fractions")


def test_the_limits_of_64_bits_are_exact() -> None:
    assert read("int64", [2**63 - 1, -(2**63)]) == [2**63 - 1, -(2**63)]
    assert refusal("int64", [2**63]) == f"{2**63}, which is outside {-(2**63)} to {2**63 - 1}"
    # numpy reads a list of these numbers as doubles.
    assert read("uint64", [1, 2**53 + 1, 2**64 - 1]) == [1, 2**53 + 1, 2**64 - 1]
    # As doubles, this number and the limit above it are equal.
    assert refusal("int64", [float(2**63)]) == f"{2**63}, which is outside {-(2**63)} to {2**63 - 1}"


@pytest.mark.parametrize(("dtype", "value"), [("float32", 1e39), ("float32", -1e39), ("float16", 70_000), ("float16", 1e5)])
def test_a_number_too_large_for_the_model_does_not_become_infinity(dtype: str, value: float) -> None:
    """Regression: 1e39 as float32 silently became infinity, and the answer was 200."""
    limit = np.finfo(dtype).max
    assert refusal(dtype, [0, value]) == f"{value}, which is outside {-limit} to {limit}"
    assert read(dtype, [0.5, 60_000]) == [0.5, 60_000]


def test_infinity_itself_is_left_to_the_model() -> None:
    # JSON has no infinity, but a column of a Parquet file may hold it.
    assert read("float32", np.array([np.inf, 1])) == [np.inf, 1]


@pytest.mark.parametrize(
    ("dtype", "value", "holds"),
    [
        ("float32", ["1"], "text"),
        ("float32", [None], "null, an object or a number beyond 64 bits"),
        ("bool", [1, 0], "whole numbers"),
        ("object", [1], "1, which is no text"),
        ("object", ["a", None], "None, which is no text"),
        ("int64", b"\x00", "bytes"),
    ],
)
def test_a_refusal_says_what_the_input_holds_instead(dtype: str, value: Any, holds: str) -> None:
    assert refusal(dtype, value) == holds


def test_text_keeps_the_nuls_it_ends_with_all_the_way_through_a_model(tmp_path: Path) -> None:
    """Regression: numpy's text of fixed width cut trailing NULs, so "b\\0" became "b"."""
    given = ["b\0", "\0", "longer", ""]
    assert read("object", given) == given
    port = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n", "m"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "same", [port[0]], [port[1]])
    path = tmp_path / "same.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    loaded = load(str(path), "same")
    assert loaded.preprocess is not None
    assert loaded.postprocess is not None
    assert plain_all(loaded.postprocess(loaded.inference(loaded.preprocess([given])))) == [{"y": given}]


def test_numbers_beside_text_are_refused_and_not_made_text() -> None:
    assert refusal("object", ["a", 1]) == "1, which is no text"


def test_a_long_text_does_not_make_its_neighbours_as_long() -> None:
    """Regression: a body of 0.2 MB took 6.7 GB in the child, because texts in a numpy array are all as wide as the longest."""
    port = Port("x", "object", (None,))
    made = read_array(port, ["a"] * 30_000 + ["x" * 60_000])
    assert made.nbytes < 1_000_000
    assert made[-1] == "x" * 60_000


def test_lists_of_texts_of_unequal_lengths_are_told_as_that() -> None:
    with pytest.raises(InvalidInput, match="its rows differ in length"):
        read_array(Port("x", "object", (None, None)), [["a"], ["b", "c"]])
