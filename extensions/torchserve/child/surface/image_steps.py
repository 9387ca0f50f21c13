"""Images as tensors for the built-in handlers: the steps of torchvision by its documentation, on Pillow, numpy and torch.

An image is scaled by Pillow's bilinear filter, as torchvision does with images of Pillow, so that answers agree.
"""

from __future__ import annotations

import base64
import io
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.handlers.tasks.images import MAX_SIDE, eight_bit

if TYPE_CHECKING:
    from PIL import Image as Pillow

# What networks that were trained on ImageNet expect.
_SHORT_SIDE = 256
_CROP = 224
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


def imagenet_input(image: Pillow.Image) -> Any:
    """The middle of the image as a tensor [3, 224, 224], with ImageNet's mean and deviation."""
    import numpy as np
    import torch

    pixels = np.asarray(center(scaled(colored(image), _SHORT_SIDE), _CROP))
    return torch.from_numpy(np.stack([table[pixels[:, :, channel]] for channel, table in enumerate(_normalized())]))


def plain_input(image: Pillow.Image) -> Any:
    """The whole image as a tensor [3, height, width] with values from 0 to 1."""
    return image_tensor(colored(image))


def colored(image: Pillow.Image) -> Pillow.Image:
    """The image in three channels. TorchServe fails on grey images, palettes and those with transparency."""
    return image if image.mode == "RGB" else eight_bit(image).convert("RGB")


def scaled(image: Pillow.Image, short_side: int) -> Pillow.Image:
    """The image, scaled so that its shorter side has this many pixels."""
    from PIL import Image

    width, height = image.size
    # Cut off and not rounded: one row more would shift the middle.
    long_side = int(short_side * max(width, height) / min(width, height))
    if long_side > MAX_SIDE:
        # A line of 20,000 pixels is a file of 100 bytes, and would have five million rows of 256.
        raise ValueError(f"the image has {width} x {height} pixels: scaled to {short_side} it is longer than {MAX_SIDE}")
    size = (short_side, long_side) if width <= height else (long_side, short_side)
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


def center(image: Pillow.Image, side: int) -> Pillow.Image:
    """The square in the middle of an image that is at least as large."""
    left, top = round((image.width - side) / 2), round((image.height - side) / 2)
    return image.crop((left, top, left + side, top + side))


def image_tensor(image: Pillow.Image) -> Any:
    """A tensor [channels, height, width] of float32 from 0 to 1."""
    import numpy as np
    import torch

    pixels = torch.from_numpy(np.array(image, dtype=np.uint8).reshape(image.height, image.width, -1))
    return pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


@cache
def _normalized() -> list[Any]:
    """Per channel the value of each byte: divided by 255, less the mean, by the deviation, in float32 as torchvision does it.

    Looked up, the values are the same, in a sixth of the time: threads for 150,000 values cost more than they save.
    """
    import numpy as np

    values = np.arange(256, dtype=np.float32) / np.float32(255)
    return [(values - np.float32(mean)) / np.float32(deviation) for mean, deviation in zip(_MEAN, _STD, strict=True)]


def opened(value: Any) -> Any:
    """An image from a file's bytes or its base64. What is neither comes back as it is."""
    from PIL import Image

    data = base64.b64decode(value) if isinstance(value, str) else value
    return Image.open(io.BytesIO(data)) if isinstance(data, (bytes, bytearray, memoryview)) else data
