"""Segmentation: the class of each pixel of an image."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import Meta

from penstock.errors import HandlerContractError, HandlerLoadError, InvalidInput
from penstock.handlers.contract import Context, Failure
from penstock.handlers.tasks.image_task import ImageOptions, ImageTask
from penstock.handlers.tasks.images import Fit, FrameTransform
from penstock.handlers.tasks.labels import NOT_NUMBERS, activated, read_labels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# Nested lists take about 60 bytes of memory per pixel, and an image may have fifty million pixels.
_MAX_LISTED_PIXELS = 4_000_000
# A PNG palette has 256 colours.
_PALETTE_CLASSES = 256


class SegmentationOptions(ImageOptions, kw_only=True, frozen=True):
    """`mask`: `base64` and `list` put the mask into the JSON, `png` answers with the PNG file alone, `pairs` with
    [class, probability] per pixel. `original_size`: the mask is as large as the image as sent, else as the model's frame.
    `threshold` is for models with one class, whose output is a score per pixel.
    """

    fit: Fit = "stretch"
    labels: str = ""
    mask: Literal["base64", "list", "png", "pairs"] = "base64"
    original_size: bool = True
    threshold: Annotated[float, Meta(ge=0, le=1)] = 0.5


class Segmentation(ImageTask):
    """Finds the class of each pixel: a mask of class ids, and the share of each class."""

    task: ClassVar[str] = "segmentation"
    usual_output: ClassVar[str] = "out"
    defaults: ClassVar[SegmentationOptions] = SegmentationOptions()
    options: SegmentationOptions

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        if self.options.fit == "crop":
            raise HandlerLoadError("segmentation needs the whole image; set fit to stretch or letterbox")
        self.labels = read_labels(context.folder, self.options.labels)

    def answer(self, outputs: dict[str, Array], transform: FrameTransform) -> Any:
        import numpy as np

        size = transform.width * transform.height if self.options.original_size else 0
        if self.options.mask in ("list", "pairs") and size > _MAX_LISTED_PIXELS:
            reason = f"a mask of {transform.width} x {transform.height} pixels is too large for a list"
            return Failure(f"{reason}; the model's options mask = base64 or original_size = false avoid it", InvalidInput.kind)
        classes, scores = self._classes(self.output(outputs))
        if np.isnan(scores).any():
            return NOT_NUMBERS
        ids = self._resized(classes, transform)
        if self.options.mask == "pairs":
            return _pairs(ids, self._resized(scores, transform))
        if self.options.mask == "png":
            return palette_png(ids)
        mask = ids.tolist() if self.options.mask == "list" else b64encode(palette_png(ids)).decode()
        return {"width": ids.shape[1], "height": ids.shape[0], "classes": self._shares(ids), "mask": mask}

    def _classes(self, output: Array) -> tuple[Array, Array]:
        """The class id of each pixel and its probability, from [C, H, W] scores, from [1, H, W] or [H, W] logits, or from ids.

        If any score of a pixel is NaN, its probability is NaN.
        """
        import numpy as np

        if output.ndim == 3 and output.shape[0] > 1:
            probabilities = activated(output.transpose(1, 2, 0), "softmax")
            return probabilities.argmax(axis=-1).astype(np.uint16), probabilities.max(axis=-1)
        if output.ndim not in (2, 3):
            raise HandlerContractError(f"a segmentation model answers [classes, height, width], not {list(output.shape)}")
        plain = output.reshape(output.shape[-2:])
        if plain.dtype.kind in "biu":
            ids = plain.astype(np.uint8) if plain.dtype.kind == "b" else plain
            return ids, np.ones(plain.shape, np.float32)
        probability = activated(plain, "sigmoid")
        hit = probability >= self.options.threshold
        return hit.astype(np.uint16), np.where(hit, probability, 1 - probability)

    def _resized(self, values: Array, transform: FrameTransform) -> Array:
        """The part of the mask within the image, at the wanted size. Each pixel takes the value of its nearest neighbour."""
        import numpy as np

        rows, columns = values.shape
        # The mask may be coarser than the frame, by the model's stride.
        per_row, per_column = rows / self.frame.height, columns / self.frame.width
        top, left = transform.top * per_row, transform.left * per_column
        tall, wide = transform.height * transform.scale_y * per_row, transform.width * transform.scale_x * per_column
        height, width = (
            (transform.height, transform.width) if self.options.original_size else (max(1, round(tall)), max(1, round(wide)))
        )
        ys = (top + (np.arange(height) + 0.5) * tall / height).astype(np.int64).clip(0, rows - 1)
        xs = (left + (np.arange(width) + 0.5) * wide / width).astype(np.int64).clip(0, columns - 1)
        return np.asarray(values[ys[:, None], xs])

    def _shares(self, ids: Array) -> list[dict[str, Any]]:
        """The classes in the mask, the largest first."""
        import numpy as np

        classes, counts = np.unique(ids, return_counts=True)
        seen = sorted(zip(counts.tolist(), classes.tolist(), strict=True), key=lambda pair: -pair[0])
        return [{"id": name, "label": self.labels.name(name), "share": count / ids.size} for count, name in seen]


def palette_png(ids: Array) -> bytes:
    """A PNG whose pixel values are the class ids, with a colour for each. Raises `HandlerContractError` for ids above 255."""
    import numpy as np
    from PIL import Image

    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < _PALETTE_CLASSES:
        raise HandlerContractError("a PNG mask can hold the classes 0 to 255; set the option mask to list")
    image = Image.fromarray(ids.astype(np.uint8))
    image.putpalette(_colours())
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _colours() -> list[int]:
    """The palette of PASCAL VOC: the bits of the class id, spread over red, green and blue from the highest bit down."""
    colours = []
    for index in range(_PALETTE_CLASSES):
        for channel in range(3):
            colours.append(sum(((index >> (3 * step + channel)) & 1) << (7 - step) for step in range(3)))
    return colours


def _pairs(ids: Array, scores: Array) -> list[list[list[float]]]:
    import numpy as np

    pairs: list[list[list[float]]] = np.stack([ids, scores], axis=-1).tolist()
    return pairs
