"""Binary arrays as tables of their first values, whatever bytes there are."""

from __future__ import annotations

import struct

import pytest

from penstock.errors import InvalidInput
from penstock.gateway.dashboard.rows.arrays import arrays_of
from penstock.gateway.dashboard.rows.preview import PREVIEW_BYTES, preview
from penstock.job import TENSORS_MEDIA
from penstock.tensors.tensor import DATATYPES, TEXTS, Tensor, element_bytes, encode_tensors, number_data, text_data

BOX = Tensor("box", "INT32", (2, 2, 3), number_data("box", "INT32", list(range(12))))


def test_each_array_has_its_type_its_shape_and_a_row_for_each_run_of_its_last_dimension() -> None:
    words = Tensor("words", TEXTS, (2,), text_data([b"caf\xc3\xa9\x00", b"b" * 100]))
    scalar = Tensor("", "FP64", (), struct.pack("<d", 0.5))
    box, texts, one = arrays_of(encode_tensors([BOX, words, scalar]))
    assert (box.name, box.about) == ("box", "INT32, 2 × 2 × 3")
    assert box.table is not None
    assert box.table.columns == ("place", "0", "1", "2")
    assert box.table.rows == (
        ("0, 0", "0", "1", "2"),
        ("0, 1", "3", "4", "5"),
        ("1, 0", "6", "7", "8"),
        ("1, 1", "9", "10", "11"),
    )
    assert texts.table is not None
    assert texts.table.rows == (("caf\u00e9\ufffd", "b" * 60),)
    assert (one.name, one.about) == ("array", "FP64, one value")
    assert one.table is not None
    assert (one.table.columns, one.table.rows) == (("0",), (("0.5",),))


def test_a_large_array_is_shown_from_its_first_bytes() -> None:
    large = Tensor("pixels", "FP32", (3, 224, 224), bytes(4 * 3 * 224 * 224))
    data = encode_tensors([large, BOX])
    assert len(data) > PREVIEW_BYTES
    found = preview(TENSORS_MEDIA, data[:PREVIEW_BYTES], len(data))
    [pixels] = found.arrays
    assert (found.kind, pixels.about) == ("arrays", "FP32, 3 × 224 × 224")
    assert pixels.table is not None
    assert (len(pixels.table.rows), len(pixels.table.columns)) == (10, 17)
    assert pixels.table.note == "the first 10 of 672 rows, the first 16 of 224 columns"


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != TEXTS])
def test_every_datatype_is_read_as_a_number(datatype: str) -> None:
    [found] = arrays_of(encode_tensors([Tensor("x", datatype, (2,), bytes(2 * element_bytes("x", datatype)))]))
    assert found.table is not None
    assert found.table.rows in ((("0", "0"),), (("false", "false"),))


def test_an_empty_array_has_no_table() -> None:
    [found] = arrays_of(encode_tensors([Tensor("none", "INT8", (0, 3), b"")]))
    assert (found.about, found.table) == ("INT8, 0 × 3", None)


def test_bytes_that_are_cut_or_were_never_arrays_are_refused_and_nothing_else_happens() -> None:
    data = encode_tensors([BOX, Tensor("words", TEXTS, (2,), text_data([b"a", b"bc"]))])
    for size in range(len(data)):
        try:
            assert len(arrays_of(data[:size])) <= 2
        except InvalidInput:
            assert size < 30
    for start in range(256):
        for rest in (b"", b"\xff" * 40, b"\x95\xa1x\xa4INT8\x91\xcf" + b"\xff" * 8 + b"\xc4\x01a\xa0"):
            try:
                arrays_of(bytes([start]) + rest)
            except InvalidInput:
                continue
