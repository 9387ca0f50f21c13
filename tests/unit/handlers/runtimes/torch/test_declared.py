from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.batches import BatchSizes
from penstock.handlers.runtimes.contract import Port
from penstock.handlers.runtimes.torch.declared import declared_inputs


def declared(**options: Any) -> Any:
    return declared_inputs(options, file="net.pt", kind="a TorchScript program")


def test_inputs_keep_their_order_and_names_are_free_dimensions() -> None:
    found = declared(inputs={"ids": {"dtype": "int64", "shape": ["length"]}, "x": {"shape": [3, 8]}})
    assert found.ports == (Port("ids", "int64", (None,)), Port("x", "float32", (3, 8)))
    assert found.elements == ("int64", "float32")
    assert found.batch == BatchSizes()


def test_half_floats_are_sent_as_float32() -> None:
    found = declared(inputs={"x": {"dtype": "bfloat16", "shape": []}}, fixed_batch=4)
    assert (found.ports[0].dtype, found.elements) == ("float32", ("bfloat16",))
    assert found.batch == BatchSizes(4, 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "net.pt is a TorchScript program, which does not say what its inputs are"),
        ({"inputs": {}}, "declare them"),
        ({"inputs": {"x": [3, 8]}}, r"options\.inputs\.x cannot be read"),
        ({"inputs": {"x": {"shape": 3}}}, "needs a `shape`"),
        ({"inputs": {"x": {"shape": [3], "dtype": "complex64"}}}, "one of the dtypes float32"),
        ({"inputs": {"x": {"shape": [3], "type": "float32"}}}, "cannot be read"),
        ({"inputs": {"x": {"shape": [0]}}}, "holds 0; a dimension is a number from 1"),
        ({"inputs": {"x": {"shape": [True]}}}, "holds True"),
        ({"inputs": {"x": {"shape": [3]}}, "fixed_batch": 0}, "fixed_batch is 0"),
    ],
)
def test_what_cannot_be_read_is_told_with_an_example(options: dict[str, Any], words: str) -> None:
    with pytest.raises(HandlerLoadError, match=words):
        declared(**options)
