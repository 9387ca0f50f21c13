"""Two of the three stages: the joints of a figure, and the picture with its skeleton. The first is examples/detection."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from drawings import JOINTS, REACH, drawing
from PIL import Image, ImageDraw

import penstock
from penstock import Context, Failure, Media
from penstock.errors import HandlerLoadError
from penstock.handlers.array_handler import ArrayHandler

SIDE = 256
_BODY = "green disc"
# Below this much of its colour a joint is not in the picture.
_SEEN = 0.1


@dataclass
class Found:
    """A picture, and what the detector found in it."""

    image: penstock.Image
    figures: list[dict[str, Any]]


@dataclass
class Posed:
    """A picture, and the joints of the figure in it: the place of each, and of the body's middle."""

    image: penstock.Image
    joints: dict[str, Any]


def opened(data: bytes) -> Image.Image | Failure:
    try:
        return Image.open(io.BytesIO(data)).convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        return Failure(f"the picture cannot be read: {error}", "bad_image")


class Pose(ArrayHandler):
    """Finds the joints of the best figure, in pixels of the picture; a joint that is not seen is null."""

    def initialize(self, context: Context, /) -> None:
        super().initialize(context)
        example = drawing(0)
        (x, y), r = example.middle, example.radius
        box = {"x1": x - r, "y1": y - r, "x2": x + r, "y2": y + r}
        self.sample = Found(penstock.Image(example.jpeg), [{"label": _BODY, "score": 1.0, "box": box}])

    def model_source(self, context: Context, /) -> Path:
        path = context.folder / context.options.get("files", "build") / "pose.pt2"
        if not path.exists():
            raise HandlerLoadError(f"there is no {path}; write the model files: python {context.folder / 'export.py'}")
        return path

    def preprocess(self, inputs: list[Found], /) -> list[Any]:
        return self.upload([self._window(one) for one in inputs])

    def _window(self, one: Found) -> Any:
        """The square around the best figure, and where it lies."""
        picture = opened(one.image)
        if isinstance(picture, Failure):
            return picture
        figures = [figure for figure in one.figures if figure.get("label") == _BODY]
        if not figures:
            return Failure("there is no figure in the picture", "bad_drawing")
        box = max(figures, key=lambda figure: figure["score"])["box"]
        middle = (box["x1"] + box["x2"]) / 2, (box["y1"] + box["y2"]) / 2
        half = REACH * (box["x2"] - box["x1"] + box["y2"] - box["y1"]) / 4
        left, top = middle[0] - half, middle[1] - half
        # What lies outside of the picture is grey.
        corners = (left, top, left + 2 * half, top + 2 * half)
        grey, bilinear = (128, 128, 128), Image.Resampling.BILINEAR
        window = picture.transform((SIDE, SIDE), Image.Transform.EXTENT, corners, bilinear, fillcolor=grey)
        pixels = np.asarray(window, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1.0
        return {"image": pixels, "place": np.array([left, top, 2 * half], dtype=np.float32)}

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return [one if isinstance(one, Failure) else _named(one["joints"]) for one in outputs]


def _named(joints: Any) -> dict[str, dict[str, float] | None]:
    """The place and the score of each joint, by name."""
    places: dict[str, dict[str, float] | None] = {}
    for name, (x, y, seen) in zip(JOINTS, np.asarray(joints, dtype=float), strict=True):
        places[name] = {"x": float(x), "y": float(y), "score": float(seen)} if seen > _SEEN else None
    return places


@penstock.model
def skeleton(item: Posed) -> Media | Failure:
    """Draws the joints that were found into the picture, and lines from them to their middle."""
    picture = opened(item.image)
    if isinstance(picture, Failure):
        return picture
    places = {name: (place["x"], place["y"]) for name, place in item.joints.items() if place}
    draw = ImageDraw.Draw(picture)
    if places:
        middle = tuple(sum(axis) / len(places) for axis in zip(*places.values(), strict=True))
        for place in places.values():
            draw.line((*middle, *place), fill="white", width=5)
            draw.ellipse((place[0] - 9, place[1] - 9, place[0] + 9, place[1] + 9), outline="black", width=4)
    framed = io.BytesIO()
    picture.save(framed, "JPEG", quality=90)
    return Media(framed.getvalue(), "image/jpeg", "skeleton.jpg")
