"""Files as values: their media type and name, and how JSON writes them."""

from __future__ import annotations

import copy

import pytest

from penstock import File, Image
from penstock.errors import InvalidInput
from penstock.inputs.file import data_url, from_text

PNG = File(b"\x89PNG", "image/png", "cät; a.png")


def test_a_file_is_its_bytes_and_knows_where_they_come_from() -> None:
    assert (PNG == b"\x89PNG", len(PNG), PNG.content_type, PNG.filename) == (True, 4, "image/png", "cät; a.png")
    assert repr(PNG) == "<File of 4 bytes, image/png, 'cät; a.png'>"
    assert (File(b"x").content_type, File(b"x").filename) == ("application/octet-stream", "")


def test_a_copy_of_a_file_is_a_file() -> None:
    made = copy.deepcopy([PNG])[0]
    assert (type(made), made, made.content_type, made.filename) == (File, PNG, PNG.content_type, PNG.filename)


def test_a_data_url_carries_media_type_and_name_and_base64_alone_neither() -> None:
    read = from_text(data_url(PNG))
    assert (read, read.content_type, read.filename) == (PNG, PNG.content_type, PNG.filename)
    assert (from_text("iVBORw=="), from_text("iVBORw==").content_type) == (b"\x89PNG", "application/octet-stream")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("iVBORw", "not valid base64"),
        ("iVB ORw==", "not valid base64"),
        ("data:image/png,raw", "must be base64"),
        ("data:image/png;base64", "must be base64"),
        ("https://example.org/cat.png", "not fetched from URLs"),
    ],
)
def test_a_text_that_is_no_file_is_refused_with_the_reason(text: str, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault):
        from_text(text)


@pytest.mark.parametrize("value", [PNG, data_url(PNG), b"\x89PNG", bytearray(b"\x89PNG"), File(b"\x89PNG", "IMAGE/PNG; x=y")])
def test_an_image_is_read_from_whatever_may_be_one(value: object) -> None:
    made = Image.read(value)
    assert (type(made), made) == (Image, b"\x89PNG")


def test_a_file_of_another_media_type_is_no_image_and_a_number_no_file() -> None:
    with pytest.raises(InvalidInput, match=r"the file is text/plain, and the model takes image/\* here"):
        Image.read(File(b"hi", "text/plain"))
    with pytest.raises(InvalidInput, match="base64 or a data: URL, not int"):
        File.read(5)
