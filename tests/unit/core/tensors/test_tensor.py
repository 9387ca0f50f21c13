from __future__ import annotations

import math
import struct

import pytest

from penstock.errors import InvalidInput
from penstock.tensors.tensor import (
    MAX_TEXTS,
    Tensor,
    check_tensor,
    decode_tensors,
    encode_tensors,
    nested,
    number_data,
    shape_of,
    text_data,
    texts_of,
    values_of,
)


def test_a_payload_has_the_tensors_and_copies_no_data_when_it_is_read() -> None:
    given = [Tensor("x", "FP32", (2, 2), struct.pack("<4f", 1, 2, 3, 4)), Tensor("s", "BYTES", (2,), text_data([b"a", b""]))]
    payload = encode_tensors(given)
    first, second = decode_tensors(payload)
    assert values_of(first) == [[1, 2], [3, 4]]
    assert texts_of(second) == [b"a", b""]
    assert isinstance(first.data, memoryview)
    assert first.data.obj is payload


@pytest.mark.parametrize(
    ("datatype", "data", "value"),
    [
        ("BOOL", b"\x00\x01", [False, True]),
        ("INT8", b"\xff\x01", [-1, 1]),
        ("UINT64", b"\xff" * 8 + bytes(8), [2**64 - 1, 0]),
        ("FP16", struct.pack("<2e", 0.5, -2.0), [0.5, -2.0]),
        ("BF16", b"\xc0\x3f\x00\xc0", [1.5, -2.0]),
        ("FP64", struct.pack("<2d", 0.1, math.pi), [0.1, math.pi]),
    ],
)
def test_numbers_are_read_from_their_bytes(datatype: str, data: bytes, value: list[object]) -> None:
    assert values_of(check_tensor(Tensor("x", datatype, (2,), data))) == value


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("x", "FP32", (2,), bytes(7)),
        Tensor("x", "FP32", (-1,), b""),
        Tensor("x", "FLOAT", (1,), bytes(4)),
        Tensor("x", "INT8", (1 << 30, 1 << 30), b""),
        Tensor("x", "INT8", (1_000_000_000, 0), b""),
        Tensor("x", "INT8", (1,) * 65, b"\x00"),
        Tensor("x", "BYTES", (1,), b"\x05\x00\x00\x00abc"),
        Tensor("x", "BYTES", (1,), b"\x00\x00"),
        Tensor("x", "BYTES", (2,), text_data([b"a"])),
        Tensor("x", "BYTES", (MAX_TEXTS + 1,), bytes(4 * (MAX_TEXTS + 1))),
    ],
)
def test_a_shape_that_lies_about_its_bytes_is_refused(tensor: Tensor) -> None:
    with pytest.raises(InvalidInput, match="tensor 'x'"):
        check_tensor(tensor)
    with pytest.raises(InvalidInput):
        decode_tensors(encode_tensors([tensor]))


def test_what_is_no_payload_is_refused() -> None:
    for data in (b"", b"{}", b"\xc1", b"\xdd\xff\xff\xff\xff"):
        with pytest.raises(InvalidInput, match="no tensors"):
            decode_tensors(data)


def test_elements_are_nested_by_their_shape_and_back() -> None:
    assert nested([7], ()) == 7
    assert nested([], (2, 0, 3)) == [[], []]
    for shape in ((3,), (2, 3), (2, 1, 2)):
        elements: list[object] = list(range(math.prod(shape)))
        assert shape_of(nested(elements, shape)) == (shape, elements)
    assert shape_of([[1], [2, 3]]) is None
    assert shape_of([1, [2]]) is None


@pytest.mark.parametrize(
    ("datatype", "elements"),
    [("INT8", [128]), ("UINT8", [-1]), ("INT32", [1.5]), ("BOOL", [1]), ("FP32", [1e39]), ("FP64", [True])],
)
def test_a_number_that_the_datatype_does_not_hold_is_refused(datatype: str, elements: list[object]) -> None:
    with pytest.raises(InvalidInput):
        number_data("x", datatype, elements)
