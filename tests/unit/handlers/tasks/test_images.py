from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import InvalidInput
from penstock.handlers.tasks.images import Frame, Picture, framed
from tests.unit.handlers.tasks.models import picture, plain

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def header_only_png(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def stripes(*colours: tuple[int, int, int], wide: int = 8, high: int = 8) -> Any:
    """Vertical stripes from left to right."""
    return np.concatenate([np.full((high, wide, 3), colour) for colour in colours], axis=1)


@pytest.mark.parametrize(
    "value",
    [
        b"file",
        base64.b64encode(b"file").decode(),
        "data:image/png;base64," + base64.b64encode(b"file").decode(),
        {"image": base64.b64encode(b"file").decode()},
        {"b64": base64.b64encode(b"file").decode()},
        " Zml\nsZQ== ",
    ],
)
def test_an_image_may_come_as_bytes_base64_or_data_url(value: Any) -> None:
    assert Picture.read(value) == b"file"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"picture": "x"}, "send the image file itself"),
        (7, "send the image file itself"),
        ("no base64!", "not valid base64"),
        ("data:image/png,abc", "must be base64"),
        ("https://example.com/cat.png", "not fetched"),
    ],
)
def test_what_is_no_image_is_refused_with_words_that_help(value: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Picture.read(value)


def test_crop_takes_the_middle() -> None:
    pixels, transform = framed(picture(stripes(RED, GREEN, BLUE)), Frame(8, 8, crop_ratio=1.0))
    assert pixels.shape == (8, 8, 3)
    assert (pixels == GREEN).all()
    assert transform == (24, 8, 1.0, 1.0, -8.0, 0.0)


def test_the_crop_ratio_cuts_the_rim() -> None:
    inner = np.zeros((8, 8, 3))
    inner[2:6, 2:6] = 255
    pixels, transform = framed(picture(inner), Frame(4, 4, crop_ratio=0.5))
    assert (pixels == 255).all()
    assert (transform.scale_x, transform.left) == (1.0, -2.0)


def test_letterbox_keeps_the_whole_image_with_grey_beside_it() -> None:
    pixels, transform = framed(picture(stripes(RED, BLUE)), Frame(8, 8, "letterbox"))
    assert (pixels[:2] == 114).all()
    assert (pixels[6:] == 114).all()
    assert (pixels[3, :3] == RED).all()
    assert (pixels[3, 5:] == BLUE).all()
    assert transform == (16, 8, 0.5, 0.5, 0, 2)


def test_stretch_fills_the_frame_out_of_proportion() -> None:
    pixels, transform = framed(picture(stripes(RED, BLUE)), Frame(4, 8, "stretch"))
    assert (pixels[:, 0] == RED).all()
    assert (pixels[:, 3] == BLUE).all()
    assert (transform.scale_x, transform.scale_y) == (0.25, 1.0)


def test_a_turned_photograph_is_set_upright_before_anything_else() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the first column as seen is the last row as stored
    stored = picture(stripes(RED, BLUE, wide=16, high=16), form="JPEG", exif=exif)
    pixels, transform = framed(stored, Frame(16, 32, "stretch"))
    assert (transform.width, transform.height) == (16, 32)
    assert pixels[4, 8].argmax() == 0
    assert pixels[28, 8].argmax() == 2


def test_a_large_jpeg_is_decoded_small_and_its_size_is_still_reported() -> None:
    pixels, transform = framed(picture(stripes(RED, BLUE, wide=512, high=1024), form="JPEG"), Frame(16, 16, "stretch"))
    assert (transform.width, transform.height) == (1024, 1024)
    assert pixels[8, 2].argmax() == 0
    assert pixels[8, 13].argmax() == 2


@pytest.mark.parametrize("fit", ["crop", "letterbox", "stretch"])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 3000), (3000, 1), (7, 5)])
def test_images_of_any_shape_fill_the_frame(fit: Any, width: int, height: int) -> None:
    pixels, transform = framed(plain(GREEN, width, height), Frame(6, 4, fit))
    assert pixels.shape == (4, 6, 3)
    assert (transform.width, transform.height) == (width, height)


def test_grey_palette_alpha_and_sixteen_bit_images_are_understood() -> None:
    deep = np.full((4, 4), 65_535 // 2, dtype=np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(deep).save(buffer, "PNG")
    pixels, _ = framed(buffer.getvalue(), Frame(4, 4, mode="L"))
    assert (pixels == 127).all()
    assert framed(picture(np.full((4, 4), 9)), Frame(4, 4))[0][0, 0].tolist() == [9, 9, 9]
    assert framed(picture(np.full((4, 4, 4), 9)), Frame(4, 4))[0].shape == (4, 4, 3)


@pytest.mark.parametrize(("width", "height"), [(10_000, 10_000), (100_000, 100_000), (2_000_000_000, 2_000_000_000)])
def test_a_bomb_is_refused_by_its_header(width: int, height: int) -> None:
    with pytest.raises(InvalidInput, match="pixels"):
        framed(header_only_png(width, height), Frame(8, 8))


def test_the_pixel_cap_is_the_frames() -> None:
    with pytest.raises(InvalidInput, match="the image has 8 x 8 pixels; the limit is 63"):
        framed(plain(RED), Frame(8, 8, max_pixels=63))


@pytest.mark.parametrize("size", [(16_385, 1), (1, 16_385)])
def test_a_strip_that_is_too_long_is_refused_however_few_its_pixels(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput, match="the limit per side is 16384"):
        framed(header_only_png(*size), Frame(8, 8))


@pytest.mark.parametrize("data", [b"", b"hello", b"GIF89a" + b"\0" * 40, header_only_png(8, 8), plain(RED)[:50]])
def test_a_broken_or_unwanted_file_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="not an image that can be read as JPEG or PNG or WEBP"):
        framed(data, Frame(8, 8))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_damage_to_a_file_raises_anything_else() -> None:
    rng = np.random.default_rng(7)
    noise = rng.integers(0, 256, (24, 24, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    wholes = [picture(noise, form=form) for form in ("PNG", "WEBP", "GIF")] + [picture(noise, form="JPEG", exif=exif)]
    for whole in wholes:
        for _ in range(100):
            data = bytearray(whole)
            for place in rng.integers(0, len(data), 3):
                data[place] = rng.integers(0, 256)
            try:
                framed(bytes(data[: rng.integers(1, len(data) + 1)]), Frame(8, 8, formats=("JPEG", "PNG", "WEBP", "GIF")))
            except InvalidInput:
                continue
