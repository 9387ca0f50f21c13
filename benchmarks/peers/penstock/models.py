"""The no-op and the stand-in accelerator as handlers; the embedding model is examples/embeddings."""

from __future__ import annotations

from typing import Any, ClassVar

from functions import accelerate, square

from penstock import Handler


class Square(Handler):
    """The square of a number."""

    def inference(self, batch: list[Any], /) -> list[Any]:
        return square(batch)


class Accelerator(Handler):
    """SHA-256 and length of a text, at the pace of a device."""

    sample: ClassVar[dict[str, str]] = {"text": "warm-up"}

    def inference(self, batch: list[Any], /) -> list[Any]:
        return accelerate(batch)
