"""A link whose calls are answered once a replica has their writes on its disk, for stores on two machines."""

# D98: docs/design/store.md

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis
import redis.asyncio

from penstock.broker.store.connection import CallLink
from penstock.broker.store.library import unwaited
from penstock.errors import StoreUnavailable

# A call that finds its work done writes nothing, and WAITAOF waits for the writes of its connection alone. This write stands
# before the call, so that there is one.
_MARK = ("SET", "ps:replicated", "1")
# Milliseconds, together less than a gateway waits for an answer. WAITAOF asks the replica once how far its disk is. A replica
# that is asked in the moment in which it gets the writes answers with what was before, and by itself it reports once a second.
_ASK_FOR_MS = (15, 60, 900)


class NotReplicated(StoreUnavailable):
    """The primary has stored the call's writes, and no replica has confirmed them in time: they may be undone."""


class ReplicatedLink(CallLink):
    """Takes calls as `CallLink` does; an answer comes once a replica has confirmed what was written."""

    def __init__(self, pool: redis.asyncio.ConnectionPool, *, within_s: float) -> None:
        super().__init__(pool, within_s=within_s)
        self._rounds: _Rounds | None = None

    @staticmethod
    def is_waited_for(function: str) -> bool:
        return function not in unwaited()

    def waits_for(self, function: str) -> bool:
        return self.is_waited_for(function)

    def mark(self, command: Sequence[Any]) -> Sequence[Any]:
        """The write that stands before this command."""
        return _MARK

    def call(self, command: Sequence[Any]) -> asyncio.Future[Any] | None:
        futures = self.calls([self.mark(command), command])
        if futures is None:
            return None
        mark, sent = futures
        # The answer to the mark is not needed: the next answer says the same.
        mark.cancel()
        return asyncio.get_running_loop().create_task(self._confirmed(sent, self._connection))

    async def _confirmed(self, sent: asyncio.Future[Any], connection: object) -> Any:
        """The reply to the call. Raises its error, else why the writes are not known to be on two machines."""
        reply = await sent
        if self._rounds is None or self._rounds.connection is not connection:
            self._rounds = _Rounds(connection, self._ask)
        await self._rounds.pass_one()
        return reply

    async def _ask(self, connection: object) -> None:
        """Ask whether a replica has what was written over this connection. Raises why that is not known."""
        # Another connection knows nothing of the writes, and may lead to a primary that never had them.
        asked = self.calls([("WAITAOF", 1, 1, ms) for ms in _ASK_FOR_MS]) if self._connection is connection else None
        if asked is None:
            raise redis.ConnectionError("the connection broke before a replica confirmed what was written")
        replies = await asyncio.gather(*asked, return_exceptions=True)
        if not any(_is_confirmed(one) for one in replies):
            raise _refusal(replies[-1])


class _Rounds:
    """WAITAOF rounds over one connection, one after the other. Each round serves all calls that were answered before it: of a
    thousand calls without a replica, the last would otherwise be refused a quarter of an hour after the first.
    """

    def __init__(self, connection: object, ask: Callable[[object], Awaitable[None]]) -> None:
        self.connection = connection
        self._ask = ask
        self._next: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def pass_one(self) -> None:
        """Wait for the answer to a question that is asked from now on. Raises what `ask` raises."""
        loop = asyncio.get_running_loop()
        self._next = self._next or loop.create_future()
        waited = self._next
        if self._task is None:
            self._task = loop.create_task(self._run())
        await asyncio.shield(waited)

    async def _run(self) -> None:
        while self._next is not None:
            waited, self._next = self._next, None
            try:
                await self._ask(self.connection)
            except Exception as error:  # noqa: BLE001 - handed to every call that waits for this answer
                waited.set_exception(error)
                waited.exception()  # seen here, because every caller may have left
            else:
                waited.set_result(None)
        self._task = None


def _is_confirmed(reply: Any) -> bool:
    """WAITAOF answers two counts of servers that have the writes on their disk: primaries and replicas."""
    return isinstance(reply, list) and all(reply)


def _refusal(reply: Any) -> Exception:
    if isinstance(reply, Exception):
        return reply
    missing = "no replica has" if reply[0] else "the primary has not"
    return NotReplicated(f"{missing} written this to its disk within {sum(_ASK_FOR_MS) / 1000:.0f} s", hint=_HINT)


_HINT = 'see `penstock doctor`: store.durability = "replicated" needs a replica that is connected, with appendonly yes'
