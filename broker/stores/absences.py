"""Which of several stores do not answer. One of them costs a list over all models one wait, and no list after it."""

# D117: docs/design/store.md

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Set
from contextlib import suppress

from penstock.errors import StoreUnavailable

# A store that is away is asked again after this pause, for as long as it takes.
_ASK_AGAIN_S = 0.25


class StoreAbsences(Set[str]):
    """The names of the stores that did not answer the last call. `ask` asks one of them, which counts as there once it answers.

    For one event loop.
    """

    def __init__(self, ask: Callable[[str], Awaitable[object]]) -> None:
        self._ask = ask
        self._asking: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, store: object) -> bool:
        return store in self._asking

    def __iter__(self) -> Iterator[str]:
        return iter(self._asking)

    def __len__(self) -> int:
        return len(self._asking)

    def note(self, store: str) -> None:
        """The store did not answer."""
        if store not in self._asking:
            self._asking[store] = asyncio.create_task(self._until_there(store))

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _until_there(self, store: str) -> None:
        try:
            while True:
                with suppress(StoreUnavailable):
                    await self._ask(store)
                    return
                await asyncio.sleep(_ASK_AGAIN_S)
        finally:
            del self._asking[store]
