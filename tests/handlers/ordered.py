"""Handlers for the tests of Celery's clients: the order says what comes back and when."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

from penstock import Context, Failure, Handler


class Ordered(Handler):
    """`{"echo": value}`; `{"size": n}`: a text; `{"bytes": n}`; `{"code": c}`: fails; `{"busy": name}`: fails once and
    is tried again; `{"until": path}`: waits for this file, and reports half if it ends in `.half`. A list comes back.
    """

    def initialize(self, context: Context, /) -> None:
        self.context = context
        self.seen: Counter[str] = Counter()

    def inference(self, batch: list[Any], /) -> list[Any]:
        return [self._obey(place, order) for place, order in enumerate(batch)]

    def _obey(self, place: int, order: dict[str, Any] | list[Any]) -> Any:
        if isinstance(order, list):
            return order
        if "size" in order:
            return "x" * order["size"]
        if "bytes" in order:
            return b"\xff" * order["bytes"]
        if "code" in order:
            return Failure(f"refused with {order['code']}", code=order["code"])
        if "busy" in order:
            self.seen[order["busy"]] += 1
            return Failure("busy", code="busy", retryable=True) if self.seen[order["busy"]] == 1 else "done"
        if "until" in order:
            self._wait(place, Path(order["until"]))
        return order.get("echo")

    def _wait(self, place: int, gate: Path) -> None:
        item = self.context.items[place]
        if gate.suffix == ".half":
            item.progress(0.5, "half")
        while not gate.exists() and not item.cancelled:
            time.sleep(0.02)


class Measured(Handler):
    """How many bytes came, for inputs that are bytes."""

    def inference(self, batch: list[bytes], /) -> list[int]:
        return [len(data) for data in batch]
