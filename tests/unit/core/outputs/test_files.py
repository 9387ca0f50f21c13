from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock import Media
from penstock.errors import HandlerContractError
from penstock.outputs.files import file_as, file_of, is_file_class

RED = Image.new("RGB", (3, 2), "red")


def opened(file: Media) -> Image.Image:
    return Image.open(io.BytesIO(bytes(file.data)))


def test_an_image_is_a_png_unless_the_annotation_says_otherwise() -> None:
    file = file_of(RED)
    assert (file.content_type, opened(file).format, opened(file).getpixel((0, 0))) == ("image/png", "PNG", (255, 0, 0))
    assert opened(file_as(RED, "image/jpeg")).format == "JPEG"
    assert opened(file_as(RED, "image/webp")).size == (3, 2)


def test_what_is_a_file_by_itself_is_known_without_pillow() -> None:
    buffer = io.BytesIO()
    RED.save(buffer, "PNG")
    assert is_file_class(type(RED))
    assert is_file_class(type(Image.open(buffer)))
    assert is_file_class(Media)
    assert not any(map(is_file_class, (bytes, dict, np.ndarray)))


def test_an_array_is_a_file_that_numpy_reads_without_pickle_or_an_image() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = file_as(array, "application/x-npy")
    assert np.array_equal(np.load(io.BytesIO(bytes(file.data)), allow_pickle=False), array)
    assert opened(file_as(np.zeros((4, 5, 3), np.uint8), "image/png")).size == (5, 4)


def test_bytes_and_texts_get_the_annotated_type_and_a_file_keeps_its_own() -> None:
    assert file_as(b"RIFF", "audio/wav") == Media(b"RIFF", "audio/wav")
    assert file_as("é", "text/html") == Media("é".encode(), "text/html; charset=utf-8")
    assert file_as("a", "text/csv; charset=utf-8").content_type == "text/csv; charset=utf-8"
    own = Media(b"a", "text/csv", "a.csv")
    assert file_as(own, "image/png") is own


@pytest.mark.parametrize(
    ("value", "content_type", "words"),
    [
        ({"a": 1}, "image/png", "an output of type dict cannot be written as image/png"),
        ("text", "image/png", "an output of type str cannot be written as image/png"),
        (RED, "audio/wav", "writes no images of the type audio/wav"),
        (Image.new("RGBA", (1, 1)), "image/jpeg", r"mode RGBA cannot be written as JPEG.*convert\('RGB'\)"),
        (np.array([object()]), "application/x-npy", "an array of object"),
        (np.zeros((2, 2), np.complex64), "image/png", "an array of complex64"),
    ],
)
def test_what_cannot_be_written_so_says_why(value: Any, content_type: str, words: str) -> None:
    with pytest.raises(HandlerContractError, match=words):
        file_as(value, content_type)
