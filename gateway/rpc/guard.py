"""Guards every call: checks key and role, takes a permit, reads the message, counts, and refuses.

Rules and permits are the same as for HTTP.
"""

# D91: docs/design/protocols.md
from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import grpc
import structlog
from grpc import aio

from penstock.errors import BadRequest, CapacityError, PenstockError, RateLimited, Unauthorized
from penstock.gateway.asgi.connection import ClientConnection
from penstock.gateway.asgi.negotiation import Head, read_head, trace_header
from penstock.gateway.asgi.problems import TooSlow
from penstock.gateway.asgi.wire import SMALL_BODY_BYTES, BodyMemory, ClientGone
from penstock.gateway.auth.keys import NOBODY, Caller, KeyAuth, Shares
from penstock.gateway.auth.rules import RouteRules, require_role
from penstock.gateway.rpc.refusals import CODES, refusal_of
from penstock.gateway.telemetry.metrics import GatewayMetrics, GrpcMetrics

log = structlog.get_logger(__name__)

T = TypeVar("T")
RawHeaders = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """`path`: the HTTP method and route whose roles it needs; empty: it needs no key. `permits`: each
    call holds one of them; None: no permits. `codes`: the gRPC status of a refusal, by its HTTP status.
    """

    name: str
    path: str
    permits: Shares | None
    verb: str = "GET"
    codes: Mapping[int, Any] = field(default_factory=lambda: CODES)


@dataclass(frozen=True, slots=True)
class Rpc:
    """One call: its caller and its metadata. `context` is gRPC's own."""

    method: RpcMethod
    caller: Caller
    headers: RawHeaders
    head: Head
    context: Any
    address: str
    # Receives the job's trace, like the scope of an HTTP request.
    scope: dict[str, Any] = field(default_factory=dict)
    connection: ClientConnection = field(default_factory=ClientConnection)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the caller's deadline; None without one."""
        left: float | None = self.context.time_remaining()
        return left


Serve = Callable[[Rpc], Awaitable[T]]


class RpcGuard:
    """Serves the calls of one gateway process. `messages`: how many are read at a time, since gRPC keeps each whole in memory;
    `bodies`: the memory for those that were read. `body_s`: how long a message may be on its way.
    """

    def __init__(
        self,
        auth: KeyAuth,
        rules: RouteRules,
        metrics: GatewayMetrics,
        *,
        messages: BodyMemory,
        bodies: BodyMemory,
        body_s: float,
    ) -> None:
        self._auth = auth
        self._rules = rules
        self._metrics = metrics
        self._counts = GrpcMetrics(metrics.registry)
        self._messages = messages
        self._bodies = bodies
        self._body_s = body_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._callers: dict[asyncio.Task[Any], str] = {}
        self._revoked: set[asyncio.Task[Any]] = set()

    def unary(self, method: RpcMethod, answer: Callable[[Rpc, bytes], Coroutine[Any, Any, bytes]]) -> Any:
        """gRPC's handler of a method with one message each way. gRPC sees a stream, so that the message is read only after
        the caller is checked: strangers cannot fill memory.
        """

        async def serve(_: Any, context: Any) -> bytes:
            async def whole(rpc: Rpc) -> bytes:
                return await self.until_gone(answer(rpc, await self.message(rpc)), rpc)

            return await self._served(method, context, whole)

        return grpc.stream_unary_rpc_method_handler(serve)

    def stream(self, method: RpcMethod, serve: Serve[None]) -> Any:
        """gRPC's handler of a method that reads and writes messages in any order."""

        async def whole(_: Any, context: Any) -> None:
            await self._served(method, context, serve)

        return grpc.stream_stream_rpc_method_handler(whole)

    async def _served(self, method: RpcMethod, context: Any, serve: Serve[T]) -> T:
        started, code = time.perf_counter(), grpc.StatusCode.OK
        headers = tuple(_raw(name, value) for name, value in context.invocation_metadata() or ())
        given_id = dict(headers).get(b"x-request-id")
        self._counts.begin()
        try:
            rpc = self._admitted(method, context, headers)
            with self.permit_in(method.permits, rpc.caller):
                answer = await self._until_revoked(serve(rpc), rpc.caller)
            if trace := trace_header(rpc.scope.get("trace")):
                context.set_trailing_metadata(tuple((name.decode(), value.decode()) for name, value in trace))
            return answer
        except (ClientGone, asyncio.CancelledError):
            code = grpc.StatusCode.CANCELLED
            raise
        except aio.AbortError:
            code = context.code()
            raise
        except Exception as error:
            refusal = refusal_of(error, method=method.name, given_id=given_id, codes=method.codes)
            code = refusal.code
            await context.abort(refusal.code, refusal.text, refusal.trailing)
            raise
        finally:
            self._counts.count(method.name, code.name, time.perf_counter() - started)

    async def _until_revoked(self, work: Awaitable[T], caller: Caller) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._callers[task] = caller.key_id
        try:
            return await work
        except asyncio.CancelledError:
            if task not in self._revoked:
                raise
            task.uncancel()
            raise Unauthorized("the API key of this call was revoked") from None
        finally:
            del self._callers[task]
            self._revoked.discard(task)

    def end_calls_of(self, keys: set[str]) -> None:
        """End the calls under way of these keys, which were revoked."""
        for task in [task for task, key in self._callers.items() if key in keys]:
            self._revoked.add(task)
            task.cancel()

    def _admitted(self, method: RpcMethod, context: Any, headers: RawHeaders) -> Rpc:
        """The call, after its metadata, key and role are checked: strangers learn no model (D15)."""
        head, address = read_head(headers), address_of(context.peer())
        caller = NOBODY
        if method.path:
            caller = self.admit(head, address)
            require_role(caller, self._rules.roles_of(method.verb, method.path))
        return Rpc(method, caller, headers, head, context, address, {"caller": caller})

    def admit(self, head: Head, address: str) -> Caller:
        """The caller of one request; raises as `KeyAuth.admit`. Each request of a stream counts."""
        try:
            return self._auth.admit(head.get(b"authorization"), address)
        except RateLimited as error:
            self._metrics.count_refusal("unknown", error)
            raise

    @contextmanager
    def permit_in(self, permits: Shares | None, caller: Caller) -> Iterator[None]:
        if permits is None:
            yield
            return
        try:
            permits.take(caller)
        except CapacityError as error:
            self._metrics.count_refusal("unknown", error)
            raise
        try:
            yield
        finally:
            permits.give_back(caller)

    async def message(self, rpc: Rpc) -> bytes:
        """The one message of the call."""
        reading = {"caller": rpc.caller}
        await self._messages.take_in_turn(1, reading)
        try:
            async with asyncio.timeout(self._body_s):
                message = await rpc.context.read()
            if message is not aio.EOF:
                await self.take_share(rpc, message, within_s=self._body_s)
        except TimeoutError:
            raise TooSlow(f"the message did not arrive within {self._body_s:g} s") from None
        finally:
            self._messages.give_back(reading)
        if message is aio.EOF:
            raise BadRequest("the call has no message")
        data: bytes = message
        return data

    async def take_share(self, rpc: Rpc, message: bytes, *, within_s: float | None = None) -> None:
        """Wait for the memory that the message takes until its job is stored; `give_back` at the end gives back the rest."""
        if len(message) > SMALL_BODY_BYTES:
            await self._bodies.take_in_turn(len(message), rpc.scope, within_s=within_s)

    def give_back(self, rpc: Rpc) -> None:
        self._bodies.give_back(rpc.scope)

    async def until_gone(self, work: Coroutine[Any, Any, T], rpc: Rpc) -> T:
        """The result of the work. If the caller leaves or its deadline passes, the work continues until it notices and cancels
        its job, as for a lost HTTP connection.
        """
        task = self.background(work)
        task.add_done_callback(lambda _: self.give_back(rpc))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            rpc.connection.mark_lost()
            task.add_done_callback(_note_bug)
            raise

    def background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that `finish` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Marks the error as retrieved: an awaiting caller raises it, and `_note_bug` logs it for one that has left.
            task.exception()

    async def finish(self) -> None:
        """Wait for the background tasks of ended calls."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _note_bug(task: asyncio.Task[Any]) -> None:
    """Log a bug whose caller has left."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, (ClientGone, PenstockError)):
        log.error("request_failed", exc_info=error)


def _raw(name: str, value: str | bytes) -> tuple[bytes, bytes]:
    return name.encode("latin-1"), value if isinstance(value, bytes) else value.encode("latin-1", "replace")


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer, such as `ipv4:127.0.0.1:50312` or `ipv6:%5B::1%5D:50312`."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else rest[:80]
