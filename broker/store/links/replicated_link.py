"""A link whose calls are answered once a replica has their writes on its disk, for stores on two machines."""

# D98: docs/design/store.md

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio

from penstock.broker.store.connection import CallLink
from penstock.broker.store.library import unwaited
from penstock.broker.store.links.topology import Node
from penstock.errors import StoreUnavailable

if TYPE_CHECKING:
    from penstock.broker.store.links.sentinel import SentinelWatch

# A call that finds its work done writes nothing, and WAITAOF waits for the writes of its connection alone. This write stands
# before the call, so that there is one.
_MARK = ("SET", "ps:replicated", "1")
# Milliseconds, together less than a gateway waits for an answer. WAITAOF asks the replicas once how far their disks are. One
# that is asked in the moment in which it gets the writes answers with what was before, and by itself it reports once a second.
_ASK_FOR_MS = (3, 6, 12, 60, 900)


class NotReplicated(StoreUnavailable):
    """The primary has stored the call's writes, and no replica has confirmed them in time: they may be undone."""


class ReplicatedLink(CallLink):
    """Takes calls as `CallLink` does; an answer comes once a replica has confirmed what was written.

    With `sentinels` all replicas that they know confirm it, because they may promote any. If some do not, one is enough where a
    look at the sentinels after its confirmation is certain that this server is the primary.
    """

    def __init__(self, pool: redis.asyncio.ConnectionPool, *, within_s: float, sentinels: SentinelWatch | None = None) -> None:
        super().__init__(pool, within_s=within_s)
        self._sentinels = sentinels
        self._is_short = False
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
        wanted = max(1, self._sentinels.view.replicas) if self._sentinels is not None else 1
        for ms in _ASK_FOR_MS:
            confirmed = await self._confirmations(connection, wanted, ms)
            # Where some were missing just now, each call does not wait again for them in vain.
            if confirmed >= (1 if self._is_short else wanted):
                break
        self._is_short = 0 < confirmed < wanted
        if not confirmed:
            late = f"within {sum(_ASK_FOR_MS) / 1000:.0f} s"
            raise NotReplicated(f"no replica has written this to its disk {late}, or the primary has not", hint=_HINT)
        if self._is_short:
            await self._ask_sentinels(connection)

    async def _confirmations(self, connection: object, wanted: int, ms: int) -> int:
        """How many replicas have on their disks what was written over this connection, as the primary has."""
        # Another connection knows nothing of the writes, and may lead to a primary that never had them.
        asked = self.calls([("WAITAOF", 1, wanted, ms)]) if self._connection is connection else None
        if asked is None:
            raise redis.ConnectionError("the connection broke before a replica confirmed what was written")
        on_primary, on_replicas = await asked[0]
        return int(on_replicas) if on_primary else 0

    async def _ask_sentinels(self, connection: Any) -> None:
        """The replica that is missing may be the primary now: raises `NotReplicated` unless the sentinels rule that out."""
        assert self._sentinels is not None
        view = await self._sentinels.seen()
        if not view.is_certain or view.primary != Node(connection.host, connection.port):
            raise NotReplicated("a replica is missing, and the sentinels do not agree on the primary", hint=_HINT)


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


_HINT = 'see `penstock doctor`: store.durability = "replicated" needs a replica that is connected, with appendonly yes'
