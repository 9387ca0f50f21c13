"""Submits of one model gathered into few Redis calls: while one call is under way, the next one fills."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.broker.records import NewJob, Submitted

# Bounds on one call, so that Redis is never held for more than about a millisecond.
MAX_JOBS = 64
MAX_BYTES = 512 * 1024
# Two calls in the air keep Redis busy while a reply travels; more would only make the groups smaller.
MAX_CALLS = 2

Send = Callable[[Sequence[NewJob], int], Awaitable[list[Submitted]]]


class GroupCommit:
    """Gathers `submit` calls of one event loop. A lone submit leaves at the end of the loop's turn, without any wait."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[tuple[NewJob, asyncio.Future[Submitted]]] = []
        self._calls: set[asyncio.Task[None]] = set()
        self._scheduled = False
        self._max_depth = 0

    async def submit(self, job: NewJob, max_depth: int) -> Submitted:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Submitted] = loop.create_future()
        self._waiting.append((job, future))
        self._max_depth = max_depth
        self._schedule(loop)
        return await future

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and not self._scheduled and len(self._calls) < MAX_CALLS:
            self._scheduled = True
            loop.call_soon(self._launch, loop)

    def _launch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        group = self._take()
        if not group:
            return
        call = loop.create_task(self._commit(group))
        self._calls.add(call)
        call.add_done_callback(lambda done: self._landed(done, loop))

    def _landed(self, call: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        self._calls.discard(call)
        self._schedule(loop)

    def _take(self) -> list[tuple[NewJob, asyncio.Future[Submitted]]]:
        size = 0
        for taken, (job, _) in enumerate(self._waiting):
            size += len(job.input.data)
            if taken and (taken == MAX_JOBS or size > MAX_BYTES):
                group, self._waiting = self._waiting[:taken], self._waiting[taken:]
                return group
        group, self._waiting = self._waiting, []
        return group

    async def _commit(self, group: list[tuple[NewJob, asyncio.Future[Submitted]]]) -> None:
        try:
            answers = await self._send([job for job, _ in group], self._max_depth)
        except Exception as error:  # noqa: BLE001 - handed to every caller of this group, none is lost
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():  # its caller may have gone away
                future.set_result(answer)
