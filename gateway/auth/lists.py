"""Lists of files and runs: one at a time of each owner, in threads of their own, so that none holds up a durable write."""

# D146: docs/design/runs.md
from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from penstock.gateway.auth.keys import Caller, Shares

T = TypeVar("T")

MOST_LISTS = 128
THREADS = 2


class Lists:
    """The lists that this gateway process is asked for, and the threads that read files for them."""

    def __init__(self) -> None:
        self._shares = Shares("lists", MOST_LISTS)
        self._turns: dict[str, asyncio.Lock] = {}
        self._asked: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(THREADS, "lists")

    @asynccontextmanager
    async def turn(self, caller: Caller) -> AsyncIterator[None]:
        """Waits until no other list of the owner is read. Raises `RateLimited` or `GatewayBusy` if too many wait."""
        self._shares.take(caller)
        self._asked[caller.owner] += 1
        try:
            async with self._turns.setdefault(caller.owner, asyncio.Lock()):
                yield
        finally:
            self._shares.give_back(caller)
            self._asked[caller.owner] -= 1
            if not self._asked[caller.owner]:
                del self._asked[caller.owner], self._turns[caller.owner]

    async def read(self, look: Callable[[], T]) -> T:
        """What a function finds that reads files, and blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, look)
