"""Drawings of a figure on paper, drawn from a seed, with the places of its joints: what a child's drawing is to an animator."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass
from math import cos, radians, sin

from PIL import Image, ImageDraw, ImageFilter

SIZE = (1280, 960)
# A joint is drawn as a dot of a colour of its own, by which the pose network knows it.
JOINTS = {
    "head": (235, 45, 235),
    "left hand": (45, 225, 235),
    "right hand": (240, 230, 45),
    "left foot": (245, 130, 25),
    "right foot": (120, 45, 235),
}
_BODY, _INK = (25, 225, 25), (45, 45, 50)
_RADII = (80, 110)
# Where the limbs end: the least and the most angle, clockwise from the top, and the length in radii of the body.
_LIMBS = {
    "head": (-12, 12, 1.7),
    "left hand": (235, 300, 2.2),
    "right hand": (60, 125, 2.2),
    "left foot": (190, 215, 2.4),
    "right foot": (145, 170, 2.4),
}
_DOT = 0.16
# Half the side of the window around a figure, in radii of its body.
REACH = 3.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """A JPEG and what is drawn in it, in pixels: the middle and radius of the body, and the middle of each joint."""

    jpeg: bytes
    middle: tuple[float, float]
    radius: float
    joints: dict[str, tuple[float, float]]


def drawing(seed: int, size: tuple[int, int] = SIZE) -> Drawing:
    """A picture of some 100 KB at the usual size."""
    chance = random.Random(seed)
    scale = size[0] / SIZE[0]
    radius = chance.uniform(*_RADII) * scale
    room = REACH * radius
    middle = chance.uniform(room, size[0] - room), chance.uniform(room, size[1] - room)
    joints = {name: _end(chance, middle, radius, *limb) for name, limb in _LIMBS.items()}
    image = _paper(chance, size)
    draw = ImageDraw.Draw(image)
    for end in joints.values():
        draw.line((*middle, *end), fill=_INK, width=max(1, round(6 * scale)))
    draw.ellipse(_around(middle, radius), fill=_BODY)
    for name, end in joints.items():
        draw.ellipse(_around(end, _DOT * radius), fill=JOINTS[name])
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return Drawing(buffer.getvalue(), middle, radius, joints)


def _end(
    chance: random.Random, middle: tuple[float, float], radius: float, least: float, most: float, length: float
) -> tuple[float, float]:
    angle = radians(chance.uniform(least, most))
    return middle[0] + length * radius * sin(angle), middle[1] - length * radius * cos(angle)


def _around(middle: tuple[float, float], radius: float) -> tuple[float, float, float, float]:
    return middle[0] - radius, middle[1] - radius, middle[0] + radius, middle[1] + radius


def _paper(chance: random.Random, size: tuple[int, int]) -> Image.Image:
    """Grey with the grain of a photo: without it a JPEG is small and decodes quickly."""
    half = size[0] // 2, size[1] // 2
    grain = Image.frombytes("L", half, chance.randbytes(half[0] * half[1])).filter(ImageFilter.GaussianBlur(1.0))
    return Image.merge("RGB", [grain.resize(size)] * 3)
