"""Pictures to look for discs in, drawn from a seed, and what was drawn."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFilter

SIZE = (1280, 960)
_COLOURS = {"red disc": (225, 25, 25), "green disc": (25, 225, 25), "blue disc": (25, 25, 225)}
# Discs stand in cells of their own, far enough apart for the windows in which the network looks.
_COLUMNS, _ROWS = 3, 2
# Of one picture no two are equally large: equal ones would score alike, and their order in the answer be chance.
_RADII = (80, 90, 100, 110, 120)


@dataclass(frozen=True, slots=True)
class Disc:
    """In pixels of the picture."""

    label: str
    x: float
    y: float
    radius: float

    @property
    def box(self) -> tuple[float, float, float, float]:
        return self.x - self.radius, self.y - self.radius, self.x + self.radius, self.y + self.radius


def scene(seed: int, size: tuple[int, int] = SIZE) -> tuple[bytes, list[Disc]]:
    """A JPEG of some 100 KB at the usual size, and its one to five discs."""
    chance = random.Random(seed)
    # Noise as a photo's: without it a JPEG is small and quickly decoded.
    half = size[0] // 2, size[1] // 2
    grain = Image.frombytes("L", half, chance.randbytes(half[0] * half[1])).filter(ImageFilter.GaussianBlur(1.0))
    image = Image.merge("RGB", [grain.resize(size)] * 3)
    draw = ImageDraw.Draw(image)
    places = chance.sample(range(_COLUMNS * _ROWS), chance.randint(1, len(_RADII)))
    radii = chance.sample(_RADII, len(places))
    discs = [_disc(chance, place, radius, size) for place, radius in zip(places, radii, strict=True)]
    for disc in discs:
        draw.ellipse(disc.box, fill=_COLOURS[disc.label])
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue(), discs


def _disc(chance: random.Random, place: int, radius: float, size: tuple[int, int]) -> Disc:
    row, column = divmod(place, _COLUMNS)
    scale = size[0] / SIZE[0]
    x, y = (column + 0.5) * size[0] / _COLUMNS, (row + 0.5) * size[1] / _ROWS
    shift = (size[0] / _COLUMNS / 2 - max(_RADII) * scale) * 0.4
    label = chance.choice(tuple(_COLOURS))
    return Disc(label, x + chance.uniform(-shift, shift), y + chance.uniform(-shift, shift), radius * scale)
