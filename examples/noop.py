"""Returns every input unchanged, so that a measurement shows the cost of penstock itself. Takes JSON, text or raw bytes."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock import Handler


class Noop(Handler):
    """Echoes its input."""

    max_batch_size: ClassVar[int | None] = 64

    def inference(self, batch: list[Any], /) -> list[Any]:
        return batch
