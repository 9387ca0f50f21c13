"""The rows that TorchServe 0.12 gives a handler for the same requests, as it was seen to give them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidInput
from penstock.extensions.torchserve.child.rows import ArchiveRow, row_codec
from penstock.inputs.form import FormPart, encode_form
from penstock.inputs.request import packed
from penstock.job import FORM_MEDIA, REQUEST_MEDIA, TENSORS_MEDIA, Payload
from penstock.tensors.tensor import Tensor, encode_tensors, text_data

URLENCODED = "application/x-www-form-urlencoded"


def row(media: str, data: bytes, *, decodes: bool = True) -> dict[str, Any]:
    return row_codec(decodes=decodes).decode(media, data).take()


@pytest.mark.parametrize(
    ("media", "data", "value"),
    [
        ("application/json", b'{"a": 1}', {"a": 1}),
        ("application/json; charset=utf-8", b"[1,2]", [1, 2]),
        ("application/json", b"null", None),
        ("application/json", b"12345678901234567890123", 12345678901234567890123),
        ("application/json", b'{"a": 1', bytearray(b'{"a": 1')),
        ("application/json", b"", bytearray(b"")),
        ("application/json", b"[" * 100_000, bytearray(b"[" * 100_000)),
        ("application/vnd.api+json", b"[1,2]", bytearray(b"[1,2]")),
        ("text/plain; charset=utf-8", "héé".encode(), "héé"),
        ("text/csv", b"a,b", "a,b"),
        ("text/plain", b"", ""),
        ("text/plain", b"\xff\xfe", bytearray(b"\xff\xfe")),
        ("text/csv; charset=latin-1", b"\xe9", bytearray(b"\xe9")),
        ("application/octet-stream", b"abc", bytearray(b"abc")),
        ("image/png", b"\x89PNG", bytearray(b"\x89PNG")),
        ("", b"abc", bytearray(b"abc")),
    ],
)
def test_a_body_is_parsed_by_its_media_type(media: str, data: bytes, value: Any) -> None:
    found = row(media, data)
    assert found == {"body": value}
    assert type(found["body"]) is type(value)


@pytest.mark.parametrize(("media", "data"), [("application/json", b'{"a": 1}'), ("text/plain", b"a"), ("image/png", b"a")])
def test_without_decoding_every_value_is_a_bytearray(media: str, data: bytes) -> None:
    assert row(media, data, decodes=False) == {"body": bytearray(data)}


def test_each_field_of_a_url_encoded_form_is_a_bytearray_and_the_last_of_a_name_counts() -> None:
    assert row(URLENCODED, b"a=1&b=x%20y&a=2&c=") == {"a": bytearray(b"2"), "b": bytearray(b"x y"), "c": bytearray(b"")}
    assert row(URLENCODED, b"") == {}
    assert row(URLENCODED, b"a=%ff") == {"a": bytearray(b"\xff")}
    with pytest.raises(InvalidInput, match="more than 1000 fields"):
        row(URLENCODED, b"&".join(b"a=1" for _ in range(1_001)))


def test_only_files_of_a_form_have_a_media_type() -> None:
    parts = [
        FormPart("data", b'{"x":1}'),
        FormPart("typed", b'{"x":2}', "application/json"),
        FormPart("f", b'{"z":1}', "application/json; charset=utf-8", "j.json"),
        FormPart("t", b"hi", "text/plain", "t.txt"),
        FormPart("b", b"hi", "", "t.txt"),
        FormPart("a", b"1"),
        FormPart("a", b"2"),
    ]
    found = row_codec().decode(FORM_MEDIA, encode_form(parts))
    assert found.take() == {
        "data": bytearray(b'{"x":1}'),
        "typed": bytearray(b'{"x":2}'),
        "f": {"z": 1},
        "t": "hi",
        "b": bytearray(b"hi"),
        "a": bytearray(b"2"),
    }
    assert found.media_types == {
        "data": {"content-type": ""},
        "typed": {"content-type": ""},
        "f": {"content-type": "application/json"},
        "t": {"content-type": "text/plain"},
        "b": {"content-type": "application/octet-stream"},
        "a": {"content-type": ""},
    }


@pytest.mark.parametrize(
    "found", [row_codec().decode("application/json", b'{"a": [1]}'), row_codec().from_value({"a": [1]})], ids=["body", "row"]
)
def test_a_row_that_a_handler_changed_is_whole_in_the_next_call(found: ArchiveRow) -> None:
    first = found.take()
    first.pop("body")["a"].append(2)
    assert found.take() == {"body": {"a": [1]}}


def test_rows_of_runs_are_bodies_of_json_or_bytes() -> None:
    codec = row_codec()
    assert [one.take() for one in codec.from_values([{"a": 1}, None, b"x"])] == [
        {"body": {"a": 1}},
        {"body": None},
        {"body": bytearray(b"x")},
    ]
    assert row_codec(decodes=False).from_value({"a": 1}).take() == {"body": bytearray(b'{"a": 1}')}


def test_tensors_are_the_request_of_their_protocol() -> None:
    tensors = [
        Tensor("x", "FP32", (2,), b"\0\0\x80?\0\0\0@"),
        Tensor("t", "BYTES", (1,), text_data([b"hi"])),
    ]
    assert row(TENSORS_MEDIA, encode_tensors(tensors)) == {
        "body": {
            "inputs": [
                {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]},
                {"name": "t", "shape": [1], "datatype": "BYTES", "data": ["hi"]},
            ]
        }
    }


def test_an_input_with_headers_is_read_without_them() -> None:
    stored = packed(Payload("text/plain", b"a"), headers={"x": "y"}, query={})
    assert row(REQUEST_MEDIA, stored.data) == {"body": "a"}
