"""The inputs for the models of `make bench-models`: enough different ones that no cache can answer."""

from __future__ import annotations

import io
import json
import random

from benchmarks.models.length_buckets import mixed_texts
from benchmarks.stack import EXAMPLES
from penstock.loadtest.generator.connection import RequestBody

_IMAGES = 32
_TEXTS = 128
_WIDTH, _HEIGHT = 320, 240


def inputs(model: str) -> list[RequestBody]:
    """Images like photographs (JPEG, 20 KB), texts of mixed length, or real digits; the same at every call."""
    if model == "embeddings":
        return [RequestBody(json.dumps(text).encode(), "application/json") for text in mixed_texts(_TEXTS)]
    if model == "digits":
        files = sorted((EXAMPLES / "digits" / "images").glob("*.png"))
        return [RequestBody(file.read_bytes(), "image/png") for file in files]
    return [RequestBody(_photograph(seed), "image/jpeg") for seed in range(_IMAGES)]


def _photograph(seed: int) -> bytes:
    """Noise, enlarged ten times: as smooth as a photograph, so that decoding costs the same."""
    from PIL import Image

    rough = random.Random(seed).randbytes(_WIDTH * _HEIGHT * 3 // 100)
    image = Image.frombytes("RGB", (_WIDTH // 10, _HEIGHT // 10), rough).resize((_WIDTH, _HEIGHT), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
