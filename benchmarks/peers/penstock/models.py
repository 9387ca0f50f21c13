"""The functions under comparison as handlers of a user's own; the built-in task is examples/embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from functions import Embed, accelerate, square

from penstock import Context, Handler


class Square(Handler):
    """The square of a number."""

    def inference(self, batch: list[Any], /) -> list[Any]:
        return square(batch)


class Accelerator(Handler):
    """SHA-256 and length of a text, at the pace of a device."""

    sample: ClassVar[dict[str, str]] = {"text": "warm-up"}

    def inference(self, batch: list[Any], /) -> list[Any]:
        return accelerate(batch)


class BytesAccelerator(Accelerator):
    """The same of a body of bytes."""

    sample: ClassVar[bytes] = b"warm-up"

    def inference(self, batch: list[bytes], /) -> list[Any]:
        return accelerate(batch)


class PlainTexts(Handler):
    """MiniLM as the other servers run it. It declares nothing: what texts cost, and which calls are cheap, is found out."""

    def initialize(self, context: Context, /) -> None:
        self._embed = Embed(Path(context.options["model_folder"]))

    def preprocess(self, inputs: list[Any], /) -> list[Any]:
        return self._embed.tokens(inputs)

    def inference(self, batch: list[Any], /) -> list[Any]:
        return self._embed.vectors(batch)


class CostedTexts(PlainTexts):
    """The same, and a text costs its tokens."""

    def cost(self, item: Any, /) -> float:
        return len(item)
