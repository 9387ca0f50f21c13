"""Handwritten digits: a PNG or JPEG in, the digit and its probability out."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from penstock import Context, Failure
from penstock.handlers.array_handler import ArrayHandler

SIDE = 8
# Checked against the header before any pixel is decoded: a 100 KB file can claim gigabytes.
MAX_PIXELS = 50_000_000
MAX_SIDE = 16_384
# Pillow's own limit is higher and at first only warns; the check below replaces it.
Image.MAX_IMAGE_PIXELS = None


@dataclass
class Prediction:
    label: int
    probability: float
    probabilities: list[float]


class Digits(ArrayHandler):
    """Recognizes the digit of an image: one digit that fills it, light on dark."""

    accepts: ClassVar[tuple[str, ...] | None] = ("image/png", "image/jpeg")
    max_batch_size: ClassVar[int | None] = 16

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        blank = io.BytesIO()
        Image.new("L", (SIDE, SIDE)).save(blank, "PNG")
        self.sample = blank.getvalue()

    def preprocess(self, inputs: list[bytes], /) -> list[Any]:
        return [_pixels(data) for data in inputs]

    def postprocess(self, outputs: list[Any], /) -> list[Prediction]:
        return [_prediction(output["probabilities"]) for output in outputs]


def _pixels(data: bytes) -> dict[str, NDArray[np.float32]] | Failure:
    """64 values from 0 to 1, row by row."""
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > MAX_PIXELS or max(image.size) > MAX_SIDE:
                limits = f"{MAX_PIXELS} in all and {MAX_SIDE} per side"
                return _refused(f"the image has {image.width} x {image.height} pixels; the limits are {limits}")
            image.draft("L", (SIDE, SIDE))
            small = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    except (OSError, ValueError, SyntaxError) as error:
        # Pillow's decoders raise all of these for broken files.
        return _refused(f"not an image Pillow can read as PNG or JPEG: {type(error).__name__}")
    return {"pixels": np.asarray(small, dtype=np.float32).reshape(-1) / np.float32(255)}


def _refused(message: str) -> Failure:
    return Failure(message, code="invalid_input")


def _prediction(probabilities: NDArray[np.float32]) -> Prediction:
    label = int(probabilities.argmax())
    return Prediction(label, float(probabilities[label]), [float(value) for value in probabilities])
