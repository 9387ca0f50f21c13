"""Images as arrays for a model, and their place in the model's frame. Pure, apart from Pillow.

An image's size is checked in its header, before any pixel is decoded: a PNG of 20 KB can decode to 800 MB.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from penstock.errors import InvalidInput
from penstock.inputs.file import File, Image

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image as Pillow

Fit = Literal["crop", "letterbox", "stretch"]
Mode = Literal["RGB", "L"]
Format = Literal["JPEG", "PNG", "WEBP", "GIF", "BMP"]

# The fields of an object that may hold the image.
_FIELDS = ("image", "b64")
MAX_PIXELS = 50_000_000
# Decoders and resizers keep whole rows and columns, so an image with few pixels but a side of a million is refused.
MAX_SIDE = 16_384
# Beyond this Pillow itself refuses (twice its Image.MAX_IMAGE_PIXELS).
PILLOW_MAX_PIXELS = 178_956_970
# EXIF orientations that swap width and height.
_SIDEWAYS = (5, 6, 7, 8)
_ORIENTATION = 0x0112
_GREY = 114
# A JPEG is decoded this many times larger than needed and then resized, as Pillow does for thumbnails.
_DRAFT_MARGIN = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """The model's input: `width` x `height` pixels, and how an image of another shape is fitted.

    `crop`: the middle of the image, `crop_ratio` of its shorter side wide. `letterbox`: the whole image with grey borders.
    `stretch`: the whole image, out of proportion.
    """

    width: int
    height: int
    fit: Fit = "crop"
    crop_ratio: float = 0.875
    mode: Mode = "RGB"
    formats: tuple[Format, ...] = ("JPEG", "PNG", "WEBP")
    max_pixels: int = MAX_PIXELS


class FrameTransform(NamedTuple):
    """The place of an image in the model's frame: x of the image is at x * scale_x + left. Sizes are in pixels."""

    width: int
    height: int
    scale_x: float = 1.0
    scale_y: float = 1.0
    left: float = 0.0
    top: float = 0.0


class Picture(Image):
    """The input of an image task: the file itself, base64, a `data:` URL, a URL where the settings allow it, or an object or a
    form with one of these as `image`.
    """

    @classmethod
    def schema(cls) -> dict[str, Any]:
        file = super().schema()
        named = [{"type": "object", "properties": {name: file}, "required": [name]} for name in _FIELDS]
        return {"anyOf": [*named, {**file, "description": "base64, a data URL or, where the settings allow it, a URL"}]}

    @classmethod
    def read(cls, value: Any) -> Self:
        if isinstance(value, dict):
            value = next((value[name] for name in _FIELDS if name in value), None)
        if isinstance(value, File) and value.content_type.startswith("text/"):
            value = value.decode("ascii", "replace")
        if not isinstance(value, (str, bytes, bytearray, memoryview)):
            raise InvalidInput('send the image file itself, or JSON {"image": "<base64 or data URL>"}')
        if isinstance(value, str) and not value.startswith("http"):
            # Tools break lines of base64.
            value = "".join(value.split())
        return super().read(value)


def framed(data: bytes, frame: Frame) -> tuple[NDArray[Any], FrameTransform]:
    """Pixels uint8 [height, width, channels] of the frame, and the image's place in it. Raises `InvalidInput`."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=frame.formats) as image:
            _check_size(image.width, image.height, frame)
            return _transformed(image, frame)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        # Pillow's own limit acts first. Ours is not higher, and the message names ours.
        raise InvalidInput(f"the image has more pixels than the limit of {frame.max_pixels}") from error
    except (OSError, ValueError, SyntaxError, IndexError, KeyError, EOFError) as error:
        # Pillow's decoders raise all of these for broken files.
        raise InvalidInput(f"not an image that can be read as {' or '.join(frame.formats)}: {type(error).__name__}") from error


def _check_size(width: int, height: int, frame: Frame) -> None:
    if width * height > frame.max_pixels:
        raise InvalidInput(f"the image has {width} x {height} pixels; the limit is {frame.max_pixels}")
    if max(width, height) > MAX_SIDE:
        raise InvalidInput(f"the image has {width} x {height} pixels; the limit per side is {MAX_SIDE}")


def _transformed(image: Pillow.Image, frame: Frame) -> tuple[NDArray[Any], FrameTransform]:
    import numpy as np
    from PIL import ImageOps

    is_sideways = image.getexif().get(_ORIENTATION, 1) in _SIDEWAYS
    width, height = (image.height, image.width) if is_sideways else image.size
    # Only JPEGs can be decoded at a smaller size. For other formats this does nothing.
    image.draft(frame.mode, _draft_size(frame, is_sideways=is_sideways))
    # In place, and converted only if necessary: at the limit each copy takes 150 MB.
    ImageOps.exif_transpose(image, in_place=True)
    plain = eight_bit(image)
    transform, small = _fitted(plain if plain.mode == frame.mode else plain.convert(frame.mode), frame, (width, height))
    pixels = np.asarray(small, dtype=np.uint8)
    return pixels.reshape(frame.height, frame.width, -1), transform


def _draft_size(frame: Frame, *, is_sideways: bool) -> tuple[int, int]:
    ratio = frame.crop_ratio if frame.fit == "crop" else 1.0
    wanted = int(_DRAFT_MARGIN * frame.width / ratio), int(_DRAFT_MARGIN * frame.height / ratio)
    return (wanted[1], wanted[0]) if is_sideways else wanted


def eight_bit(image: Pillow.Image) -> Pillow.Image:
    """16-bit grey as 8-bit. Pillow's own conversion turns everything above 255 into white."""
    import numpy as np
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image, dtype=np.int64).clip(0, 65_535)
    return Image.fromarray((values // 257).astype(np.uint8))


def _fitted(image: Pillow.Image, frame: Frame, size: tuple[int, int]) -> tuple[FrameTransform, Pillow.Image]:
    """The image in the frame. `size` is that of the image as sent; `image` may have been decoded smaller."""
    from PIL import Image

    bilinear = Image.Resampling.BILINEAR
    width, height = size
    target = frame.width, frame.height
    if frame.fit == "letterbox":
        return _letterboxed(image, frame, size)
    if frame.fit == "stretch":
        return FrameTransform(width, height, frame.width / width, frame.height / height), image.resize(target, bilinear)
    # Only the middle is resized. To enlarge the whole image and then cut it would exhaust memory for 50,000,000 x 1 pixels.
    scale = max(frame.width / width, frame.height / height) / frame.crop_ratio
    left, top = (width - frame.width / scale) / 2, (height - frame.height / scale) / 2
    zoom_x, zoom_y = image.width / width, image.height / height
    right, bottom = width - left, height - top
    box = (left * zoom_x, top * zoom_y, right * zoom_x, bottom * zoom_y)
    return FrameTransform(width, height, scale, scale, -left * scale, -top * scale), image.resize(target, bilinear, box=box)


def _letterboxed(image: Pillow.Image, frame: Frame, size: tuple[int, int]) -> tuple[FrameTransform, Pillow.Image]:
    from PIL import Image

    width, height = size
    scale = min(frame.width / width, frame.height / height)
    inner = max(1, round(width * scale)), max(1, round(height * scale))
    left, top = (frame.width - inner[0]) // 2, (frame.height - inner[1]) // 2
    canvas = Image.new(frame.mode, (frame.width, frame.height), _GREY if frame.mode == "L" else (_GREY, _GREY, _GREY))
    canvas.paste(image.resize(inner, Image.Resampling.BILINEAR), (left, top))
    return FrameTransform(width, height, inner[0] / width, inner[1] / height, left, top), canvas
