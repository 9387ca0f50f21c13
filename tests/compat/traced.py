"""Two models that note each run of a job on disk, because a job that runs twice ends once and shows only one result."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock


class Traced(penstock.Handler):
    """`{"tag": ..., "trace": FILE}` notes its tag. Until a file exists, `until` makes it take 50 ms, `held` makes it wait."""

    def inference(self, batch: list[Any], /) -> list[Any]:
        for order in batch:
            _note(order)
            if order.get("until") and not Path(order["until"]).exists():
                time.sleep(0.05)
            while order.get("held") and not Path(order["held"]).exists():
                time.sleep(0.02)
        return [{"tag": order["tag"]} for order in batch]


@penstock.model
def tell(order: dict[str, Any]) -> Iterator[str]:
    """Yields the numbers below `count`, one each 50 ms."""
    _note(order)
    for number in range(order["count"]):
        time.sleep(0.05)
        yield str(number)


def _note(order: dict[str, Any]) -> None:
    file = os.open(order["trace"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{order['tag']}\n".encode())
    os.close(file)
