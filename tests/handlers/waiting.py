"""An async handler. An item `forever` waits until it is stopped, any other answers with the pid."""

import asyncio
import os

import penstock


@penstock.model(max_batch_size=4)
async def waiting(item: str) -> int:
    if item == "forever":
        await asyncio.Event().wait()
    return os.getpid()
