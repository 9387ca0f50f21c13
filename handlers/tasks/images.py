"""Images: bytes in, an array for the model out, and the way back from the model's pixels to the image's. Pure but for Pillow.

What an image claims to be is checked in its header, before a pixel is decoded: a PNG of 20 KB can claim 800 MB.
"""

from __future__ import annotations

import binascii
import io
from base64 import b64decode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image as Pillow

Fit = Literal["crop", "letterbox", "stretch"]
Mode = Literal["RGB", "L"]
Format = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP"]

MAX_PIXELS = 50_000_000
# Decoders and resizers keep whole rows and columns: a strip of few pixels and a million wide is no image for a model.
MAX_SIDE = 16_384
# From here on Pillow refuses by itself (twice its Image.MAX_IMAGE_PIXELS).
PILLOW_MAX_PIXELS = 178_956_970
# EXIF orientations that lie on their side.
_TURNED = (5, 6, 7, 8)
_ORIENTATION = 0x0112
_GREY = 114
# How much larger than needed a JPEG is decoded before it is resized; Pillow's own choice for thumbnails.
_DRAFT_MARGIN = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """What the model wants: `width` x `height` pixels, and how an image of another shape gets there.

    `crop`: the middle of the image, `crop_ratio` of its shorter side wide; `letterbox`: all of it, grey beside it; `stretch`:
    all of it, out of proportion.
    """

    width: int
    height: int
    fit: Fit = "crop"
    crop_ratio: float = 0.875
    mode: Mode = "RGB"
    formats: tuple[Format, ...] = ("JPEG", "PNG", "WEBP")
    max_pixels: int = MAX_PIXELS


class Placement(NamedTuple):
    """Where the image lies in the model's frame: a point x of the image is at x * scale_x + left. Sizes in pixels."""

    width: int
    height: int
    scale_x: float = 1.0
    scale_y: float = 1.0
    left: float = 0.0
    top: float = 0.0


def image_bytes(value: Any) -> bytes:
    """The file in an input: as bytes, as base64 or a data URL, or as an object with one of these; raises `InvalidInput`."""
    if isinstance(value, dict):
        value = value.get("image", value.get("b64"))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, str):
        raise InvalidInput('send the image file itself, or JSON {"image": "<base64 or data URL>"}')
    if value.startswith(("http://", "https://")):
        raise InvalidInput("images are not fetched from addresses; send the file itself or base64")
    head, comma, text = value.partition(",") if value.startswith("data:") else ("", "", value)
    if head and not (comma and head.endswith(";base64")):
        raise InvalidInput("the data URL must be base64, as in data:image/png;base64,...")
    try:
        return b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"the image is not valid base64: {error}") from error


def framed(data: bytes, frame: Frame) -> tuple[NDArray[Any], Placement]:
    """Pixels uint8 [height, width, channels] in the frame, and where the image lies in it; raises `InvalidInput`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=frame.formats) as image:
            _check_size(image.width, image.height, frame)
            return _placed(image, frame)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow's own limit comes first, and its words know nothing of ours, which is no higher.
        raise InvalidInput(f"the image has more pixels than the limit of {frame.max_pixels}") from error
    except (OSError, ValueError, SyntaxError, IndexError, KeyError, EOFError) as error:
        # Pillow's decoders raise all of these for broken files.
        raise InvalidInput(f"not an image that can be read as {' or '.join(frame.formats)}: {type(error).__name__}") from error


def _check_size(width: int, height: int, frame: Frame) -> None:
    if width * height > frame.max_pixels:
        raise InvalidInput(f"the image has {width} x {height} pixels; the limit is {frame.max_pixels}")
    if max(width, height) > MAX_SIDE:
        raise InvalidInput(f"the image has {width} x {height} pixels; the limit per side is {MAX_SIDE}")


def _placed(image: Pillow.Image, frame: Frame) -> tuple[NDArray[Any], Placement]:
    import numpy as np
    from PIL import ImageOps

    turned = image.getexif().get(_ORIENTATION, 1) in _TURNED
    width, height = (image.height, image.width) if turned else image.size
    # Only JPEG decodes to a smaller size; for the others this does nothing.
    image.draft(frame.mode, _draft_size(frame, turned=turned))
    # In place, and converted only if need be: at the limit each copy takes 150 MB.
    ImageOps.exif_transpose(image, in_place=True)
    plain = _eight_bit(image)
    place, small = _fitted(plain if plain.mode == frame.mode else plain.convert(frame.mode), frame, (width, height))
    pixels = np.asarray(small, dtype=np.uint8)
    return pixels.reshape(frame.height, frame.width, -1), place


def _draft_size(frame: Frame, *, turned: bool) -> tuple[int, int]:
    ratio = frame.crop_ratio if frame.fit == "crop" else 1.0
    wanted = int(_DRAFT_MARGIN * frame.width / ratio), int(_DRAFT_MARGIN * frame.height / ratio)
    return (wanted[1], wanted[0]) if turned else wanted


def _eight_bit(image: Pillow.Image) -> Pillow.Image:
    """16-bit grey as 8-bit: Pillow's own conversion cuts everything above 255 to white."""
    import numpy as np
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image, dtype=np.int64).clip(0, 65_535)
    return Image.fromarray((values // 257).astype(np.uint8))


def _fitted(image: Pillow.Image, frame: Frame, size: tuple[int, int]) -> tuple[Placement, Pillow.Image]:
    """`size` is that of the image as sent; `image` may have been decoded smaller."""
    from PIL import Image

    bilinear = Image.Resampling.BILINEAR
    width, height = size
    target = frame.width, frame.height
    if frame.fit == "letterbox":
        return _letterboxed(image, frame, size)
    if frame.fit == "stretch":
        return Placement(width, height, frame.width / width, frame.height / height), image.resize(target, bilinear)
    # One resize of the middle, not the whole image enlarged and then cut: of an image 50,000,000 x 1 that would be a bomb.
    scale = max(frame.width / width, frame.height / height) / frame.crop_ratio
    left, top = (width - frame.width / scale) / 2, (height - frame.height / scale) / 2
    zoom_x, zoom_y = image.width / width, image.height / height
    right, bottom = width - left, height - top
    box = (left * zoom_x, top * zoom_y, right * zoom_x, bottom * zoom_y)
    return Placement(width, height, scale, scale, -left * scale, -top * scale), image.resize(target, bilinear, box=box)


def _letterboxed(image: Pillow.Image, frame: Frame, size: tuple[int, int]) -> tuple[Placement, Pillow.Image]:
    from PIL import Image

    width, height = size
    scale = min(frame.width / width, frame.height / height)
    inner = max(1, round(width * scale)), max(1, round(height * scale))
    left, top = (frame.width - inner[0]) // 2, (frame.height - inner[1]) // 2
    canvas = Image.new(frame.mode, (frame.width, frame.height), _GREY if frame.mode == "L" else (_GREY, _GREY, _GREY))
    canvas.paste(image.resize(inner, Image.Resampling.BILINEAR), (left, top))
    return Placement(width, height, inner[0] / width, inner[1] / height, left, top), canvas
