"""Gathers items of one event loop into few calls, each with one fsync: while one call is under way, the next one fills."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Group = list[tuple[Item, "asyncio.Future[Answer]"]]

# Bounds on one call, so that Redis is never held for more than about a millisecond.
MAX_ITEMS = 64
MAX_BYTES = 512 * 1024
# Two calls under way keep Redis busy while a reply travels; more would only make the groups smaller.
MAX_CALLS = 2


# D7: docs/design/store.md
class GroupCommit(Generic[Item, Answer]):
    """Gathers `commit` calls. A lone item leaves at the end of the loop's turn, without any wait.

    `send` returns one `Answer` per item, in order; an error that it raises reaches every caller of that group. `size_of` is in
    bytes. A group of `early` items leaves before the turn is over, so that its call is under way beside the rest of the turn.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        size_of: Callable[[Item], int],
        max_bytes: int = MAX_BYTES,
        max_calls: int = MAX_CALLS,
        early: int = MAX_ITEMS,
    ) -> None:
        self._send = send
        self._size_of = size_of
        self._max_bytes = max_bytes
        self._max_calls = max_calls
        self._early = early
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._scheduled = False

    async def commit(self, item: Item) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if len(self._waiting) >= self._early and len(self._calls) < self._max_calls:
            self._send_group(loop)
        else:
            self._schedule(loop)
        return await future

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._scheduled and len(self._calls) < self._max_calls:
            self._scheduled = True
            loop.call_soon(self._launch, loop)

    def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        if self._waiting and len(self._calls) < self._max_calls:
            self._send_group(loop)

    def _send_group(self, loop: asyncio.AbstractEventLoop) -> None:
        group = self._take()
        try:
            sent = self._send([item for item, _ in group])
        except Exception as error:  # noqa: BLE001 - handed to every caller of this group, none is lost
            _fail(group, error)
        else:
            call = loop.create_task(self._commit(group, sent))
            self._calls.add(call)
            call.add_done_callback(self._on_landed)
        self._schedule(loop)

    def _on_landed(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._schedule(call.get_loop())

    def _take(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        size = 0
        for taken, (item, _) in enumerate(self._waiting):
            size += self._size_of(item)
            if taken and (taken == MAX_ITEMS or size > self._max_bytes):
                group, self._waiting = self._waiting[:taken], self._waiting[taken:]
                return group
        group, self._waiting = self._waiting, []
        return group

    async def _commit(self, group: Group[Item, Answer], sent: Awaitable[Sequence[Answer]]) -> None:
        try:
            answers = await sent
        except Exception as error:  # noqa: BLE001 - handed to every caller of this group, none is lost
            _fail(group, error)
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():  # the caller may have been cancelled
                future.set_result(answer)


def _fail(group: Group[Item, Answer], error: Exception) -> None:
    for _, future in group:
        if not future.done():
            future.set_exception(error)
