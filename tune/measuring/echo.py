"""A model that costs nothing, so that its load shows the cost of penstock itself. The workers of a trial stack load it."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock import Handler


class Echo(Handler):
    """Returns each input as its output."""

    max_batch_size: ClassVar[int | None] = 64

    def inference(self, batch: list[Any], /) -> list[Any]:
        return batch
