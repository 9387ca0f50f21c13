"""A model that costs almost nothing, 1 ms of CPU time per 256 rows, so that a run shows the cost of penstock itself."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from penstock import Context, Handler

ROW_S = 0.001 / 256


class Cheap(Handler):
    """Answers `{"y": x * x}` to `{"x": x}`."""

    max_batch_size: ClassVar[int | None] = 256

    def initialize(self, context: Context, /) -> None:
        self.sample = {"x": 1}

    def inference(self, batch: list[Any], /) -> list[Any]:
        until = time.perf_counter() + ROW_S * len(batch)
        outputs = [{"y": row["x"] * row["x"]} for row in batch]
        # Spinning occupies the core like a model; sleeping would leave the core to the rest of the stack.
        while time.perf_counter() < until:
            pass
        return outputs
