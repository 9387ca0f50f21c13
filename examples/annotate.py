"""An image in, the image with a frame out: a form with a file and fields becomes one typed input.

It needs penstock-inference[images].

penstock up examples/annotate.py
penstock call annotate -F image=@cat.png -F color=red -F width=8 -o framed.png
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import PurePath

from PIL import Image, ImageDraw

import penstock
from penstock import Failure, Media


@dataclass
class Input:
    image: penstock.Image
    color: str = "orange"
    width: int = 4


@penstock.model
def annotate(item: Input) -> Media | Failure:
    """Draws a frame around the image."""
    try:
        picture = Image.open(io.BytesIO(item.image)).convert("RGB")
        ImageDraw.Draw(picture).rectangle((0, 0, picture.width - 1, picture.height - 1), outline=item.color, width=item.width)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        return Failure(f"the image cannot be framed: {error}", "bad_image")
    framed = io.BytesIO()
    picture.save(framed, "PNG")
    return Media(framed.getvalue(), "image/png", f"framed-{PurePath(item.image.filename).name or 'image'}")
