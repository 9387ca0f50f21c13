"""A handler whose orders last until a file exists, and that notes on disk each order it begins, by the worker that runs it.

A job is leased long before it begins on a busy machine, and a test that waits for a time may find either. `Gate` in
`tests/integration/worker_process.py` makes the orders.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from penstock import Handler


class Paced(Handler):
    def inference(self, batch: list[Any], /) -> list[Any]:
        return [_paced(order) if order.get("until") else order["tag"] for order in batch]


def _paced(order: dict[str, Any]) -> Any:
    gate = Path(order["until"])
    if not gate.exists():
        with gate.with_name(f"{gate.name}.{os.getppid()}").open("ab") as notes:
            notes.write(b".")
    if order["slowly"] and not gate.exists():
        time.sleep(0.05)
    while not (order["slowly"] or gate.exists()):
        time.sleep(0.01)
    return order["tag"]
