"""A handler that says how far it is. An order lasts so many steps, or until somebody does not want it any more.

`{"steps": 3}`: three steps of 0.05 s. `{"forever": true}`: until it is cancelled or late. `{"bad": true}`: raises, at the end
of the batch's call.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from penstock import Context, Handler


class Steady(Handler):
    def initialize(self, context: Context, /) -> None:
        self.context = context

    def inference(self, batch: list[Any], /) -> list[Any]:
        outputs = [self._run(place, order) for place, order in enumerate(batch)]
        if any(order.get("bad") for order in batch):
            raise ValueError("bad order")
        return outputs

    def _run(self, place: int, order: dict[str, Any]) -> Any:
        item, steps = self.context.items[place], int(order.get("steps", 1))
        for step in itertools.count(1):
            item.progress(min(step / steps, 1.0), f"step {step} of {steps}: {order.get('tag', '')}")
            if item.cancelled:
                return "half an output"
            if step >= steps and not order.get("forever"):
                return step
            time.sleep(0.05)
        raise AssertionError("never")
