"""Pictures of discs, drawn from a seed, with the list of the discs drawn."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFilter

SIZE = (1280, 960)
_COLOURS = {"red disc": (225, 25, 25), "green disc": (25, 225, 25), "blue disc": (25, 25, 225)}
# Each disc has a cell of its own, far enough from others for the windows in which the network looks.
_COLUMNS, _ROWS = 3, 2
# All discs of a picture differ in size: equal ones would have equal scores and a random order in the answer.
_RADII = (80, 90, 100, 110, 120)


@dataclass(frozen=True, slots=True)
class Disc:
    """Centre and radius in pixels of the picture."""

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
    # Noise like a photo's: without it a JPEG is small and decodes quickly.
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
