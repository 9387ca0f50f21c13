"""Redis clients as penstock needs them: short time-outs, no silent retries, replies as bytes; and the errors they raise."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.errors import StoreUnavailable

CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 5.0
AWAY = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError, OSError)
# redis-py has classes for some refusals and cuts their code off the message; the other refusals keep their code.
_REFUSALS = (redis.OutOfMemoryError, redis.ReadOnlyError, redis.exceptions.MasterDownError)
_REFUSED = ("MISCONF", "NOREPLICAS")
_FORBIDDEN_HINT = "give this Redis user the rights that `penstock store users` prints"


def store_error(error: Exception) -> Exception:
    """`StoreUnavailable` if Redis is away, refuses writes or forbids the command; else the error itself."""
    if isinstance(error, AWAY):
        return StoreUnavailable(f"Redis cannot be reached: {error}", hint="see `penstock doctor`")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return StoreUnavailable(f"Redis does not allow this user what it needs: {error}", hint=_FORBIDDEN_HINT)
    if isinstance(error, _REFUSALS) or (isinstance(error, redis.ResponseError) and str(error).startswith(_REFUSED)):
        return StoreUnavailable(f"Redis refuses to write: {error}", hint="see `penstock doctor`")
    return error


def not_loaded(error: Exception) -> StoreUnavailable:
    """The library is missing and this user may not load it; the hint says what an administrator has to do."""
    return StoreUnavailable(
        f"Redis lacks the functions of this version of penstock, and this user may not load them: {error}",
        hint="load them as an administrator: penstock store load --redis-url URL (`penstock up` does it for its own store)",
    )


def _options(url: str, name: str, read_timeout_s: float | None) -> dict[str, Any]:
    # Never repeat a command silently: a repeated claim would take a second batch.
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": read_timeout_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "client_name": name or None,
    }
    if not url.startswith("unix:"):
        options["socket_keepalive"] = True
    return options


def connect(url: str, *, name: str = "", read_timeout_s: float | None = READ_TIMEOUT_S) -> redis.Redis:
    """A client for one thread; opens its connection on first use."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **_options(url, name, read_timeout_s))


def connect_async(url: str, *, name: str = "", read_timeout_s: float | None = READ_TIMEOUT_S) -> redis.asyncio.Redis:
    """A client for one event loop; opens its connections on first use."""
    pool = redis.asyncio.ConnectionPool.from_url(url, retry=AsyncRetry(NoBackoff(), 0), **_options(url, name, read_timeout_s))
    pool.connection_class = type("Link", (_Link, pool.connection_class), {})
    return redis.asyncio.Redis.from_pool(pool)


class _Link:
    """Mends two faults of redis-py's connection class, in front of which it stands.

    A closed connection is a broken link: uvloop raises RuntimeError for a write to one, and redis-py passes that on as if it
    were a bug of the program. And a cancellation is never lost: redis-py sends within asyncio.wait_for, which before Python
    3.12 loses one that comes just after the write. A gateway that lost one that way did not end on SIGTERM.
    """

    async def send_packed_command(self, *args: Any, **options: Any) -> None:
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            await super().send_packed_command(*args, **options)  # type: ignore[misc]
        except RuntimeError as closed:
            raise redis.ConnectionError(f"the link is closed: {closed}") from closed
        if task is not None and task.cancelling() > cancels:
            # The reply is on its way, and nobody will read it from this connection.
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]
            raise asyncio.CancelledError

    def write_now(self, packed: bytes) -> None:
        """Write at once, not in order with `send_packed_command`: only for the sole user of the connection."""
        try:
            self._writer.write(packed)  # type: ignore[attr-defined]
        except RuntimeError as closed:
            raise redis.ConnectionError(f"the link is closed: {closed}") from closed
