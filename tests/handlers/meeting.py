"""An async handler whose items wait for a file or for each other, hold up the loop, or do not let themselves be stopped.

It notes on disk each item that begins, as `paced.py` does: `Gate` in `tests/integration/worker_process.py` makes the orders.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import penstock


class Meeting(penstock.Handler):
    max_batch_size = 8
    max_concurrency = 4

    def initialize(self, context: penstock.Context) -> None:
        self.context = context
        self.here = self.most = 0

    async def inference(self, batch: list[dict[str, Any]]) -> list[Any]:  # type: ignore[override]
        self.here += 1
        self.most = max(self.most, self.here)
        try:
            return [await self._one(batch[0])]
        finally:
            self.here -= 1

    async def _one(self, order: dict[str, Any]) -> Any:
        if "until" in order:
            gate = Path(order["until"])
            _note(gate)
            await _until(gate.exists)
        await _until(lambda: self.most >= order.get("company", 0))
        time.sleep(order.get("blocks", 0.0))  # noqa: ASYNC251 - this is what the worker is to tell
        while order.get("deaf"):
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        if "says" in order:
            print(order["says"], flush=True)
        return order.get("tag", self.most)


def _note(gate: Path) -> None:
    if not gate.exists():
        with gate.with_name(f"{gate.name}.{os.getppid()}").open("ab") as notes:
            notes.write(b".")


async def _until(is_so: Callable[[], bool]) -> None:
    for _ in itertools.count():
        if is_so():
            return
        await asyncio.sleep(0.01)
