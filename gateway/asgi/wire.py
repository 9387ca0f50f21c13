"""Reading bodies under their limits and sending responses, in plain ASGI messages."""

from __future__ import annotations

import asyncio
import ctypes
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import Request, Response

from penstock.errors import BadRequest, TooLarge
from penstock.gateway.asgi import bodies
from penstock.gateway.asgi.negotiation import JSON, Head, read_head, refuse_encoded, require_json
from penstock.gateway.asgi.problems import GatewayBusy, Headers, ProblemResponse

if TYPE_CHECKING:
    from penstock.settings.gateway import GatewaySettings

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# The rest of a refused upload is read up to this size, so that the client sees the refusal; above it, the connection closes.
DRAIN_BYTES = 64 * 1024 * 1024
# Refusals that are sent before the body is read.
_UNREAD = frozenset({401, 403, 413, 429, 503, 507})
# For bytes of a caller or a model: a browser must not guess another type, nor run them as a page of ours.
UNTRUSTED = {"x-content-type-options": "nosniff", "content-security-policy": "sandbox"}
NOSNIFF = (b"x-content-type-options", b"nosniff")
HEAD_ONLY = "penstock.head_only"
# In a scope: a function from our problem and the error to a refusal in the request's protocol.
WORDING = "penstock.wording"
_HEADER_SAFE = str.maketrans({chr(code): None for code in (*range(32), 127)})


# The status of a request whose client hung up, in logs and metrics.
CLIENT_GONE = 499


class ClientGone(Exception):
    """The client disconnected before the end of its request; no answer can be sent."""


# The limit for all bodies that one process has in memory at once.
MAX_BODIES_BYTES = 256 * 1024 * 1024


# Smaller bodies are not counted: the number of requests bounds them.
SMALL_BODY_BYTES = 64 * 1024
# glibc keeps the pieces of freed bodies for itself. After so many bytes it is made to return them to the system.
_TRIM_BYTES = 16 * 1024 * 1024
_trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
# In a request's scope: the bytes that its body has of the memory.
_BODY_BYTES = "penstock.body_bytes"


# D145: docs/design/gateway.md
class BodyMemory:
    """The memory limit of all bodies of this process, from their first byte until they are stored or their request is over.

    Each owner may use half of it. Without keys all bodies have the empty owner, which may use all of it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: Counter[str] = Counter()
        self._freed = asyncio.Event()
        self._untrimmed_bytes = 0

    def take(self, size: int, scope: MutableMapping[str, Any]) -> None:
        """Count `size` more bytes for the request of this scope, which has a `caller`.

        Raises `GatewayBusy` if they would exceed the limit, or the owner's half.
        """
        owner = scope["caller"].owner
        if not self._has_room(size, owner):
            share, whose = (self._limit // 2, " of one owner's bodies, its share") if owner else (self._limit, " of bodies")
            raise GatewayBusy(
                f"this gateway process has no room for {size} bytes: it may hold {self._limit} bytes of bodies that are not "
                f"stored yet, and {share}{whose}",
                retry_after_s=5.0,
            )
        self._taken[owner] += size
        scope[_BODY_BYTES] = scope.get(_BODY_BYTES, 0) + size

    async def take_in_turn(self, size: int, scope: MutableMapping[str, Any], *, within_s: float | None = None) -> None:
        """As `take`, once others have given back enough; None: however long it takes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not self._has_room(size, scope["caller"].owner):
                    await self._freed.wait()
        self.take(size, scope)

    def give_back(self, scope: MutableMapping[str, Any]) -> None:
        """Everything that the request of this scope has taken."""
        if size := scope.pop(_BODY_BYTES, 0):
            self._taken.subtract({scope["caller"].owner: size})
            self._taken = +self._taken
            # Wakes all who wait now; who begins to wait later waits for the next one.
            self._freed.set()
            self._freed = asyncio.Event()
            self._untrimmed_bytes += size
            if self._untrimmed_bytes >= _TRIM_BYTES:
                self._untrimmed_bytes = 0
                _trim(0)

    def _has_room(self, size: int, owner: str) -> bool:
        share = self._limit // 2 if owner else self._limit
        return self._taken.total() + size <= self._limit and self._taken[owner] + size <= share


def drop_frames(error: BaseException | None) -> None:
    """Have the error and its causes keep no frame: one that names the error forms a cycle with it, and keeps its body.

    The frames themselves are left alone: one of them may be a task's that goes on, for others who wait for it.
    """
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


async def read_body(scope: MutableMapping[str, Any], receive: Receive, head: Head, *, limit: int, memory: BodyMemory) -> bytes:
    """The whole body; raises `TooLarge` over `limit` bytes and `GatewayBusy` if bodies fill `memory`.

    What it takes of `memory` is given back once its job is stored, or at the end of the request. Has no deadline of its own:
    `GuardedProtocol` disconnects a slow client, and this then raises `ClientGone`.
    """
    declared = declared_length(head)
    if declared is not None and declared > limit:
        raise too_large(declared, limit)
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    body: bytes = message["body"]
    if message.get("more_body") or len(body) > SMALL_BODY_BYTES:
        body = await _read_rest(scope, receive, message, limit=limit, memory=memory)
    if len(body) > limit:
        raise too_large(len(body), limit)
    return body


async def json_body(request: Request, limits: GatewaySettings, memory: BodyMemory) -> Any:
    """The body's value; raises if the body is too large, encoded, or not JSON."""
    head = read_head(request.headers.raw)
    refuse_encoded(head)
    require_json(head)
    receive: Receive = request.receive  # type: ignore[assignment]
    body = await read_body(request.scope, receive, head, limit=limits.max_json_bytes, memory=memory)
    value = bodies.parse_json(body)
    return await asyncio.to_thread(orjson.loads, body) if value is bodies.UNBUILT else value


async def _read_rest(
    scope: MutableMapping[str, Any], receive: Receive, message: dict[str, Any], *, limit: int, memory: BodyMemory
) -> bytes:
    parts: list[bytes] = []
    taken = 0
    while taken <= limit:
        memory.take(len(message["body"]), scope)
        taken += len(message["body"])
        parts.append(message["body"])
        if not message.get("more_body"):
            break
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
    return b"".join(parts)


class HeadOnly:
    """Answers a HEAD like the GET of its path, without the body: a stream ends after its head.

    Routes see a GET. Once the head is sent, `receive` reports a disconnect, so that work for the body stops.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = {**scope, "method": "GET", HEAD_ONLY: True}
        self._send = send
        self._answered = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self._answered.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            self._answered.set()


def declared_length(head: Head) -> int | None:
    length = head.get(b"content-length")
    if length is None:
        return None
    try:
        return int(length)
    except ValueError:
        raise BadRequest("Content-Length is not a number") from None


def too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"the body has {size} bytes or more; the limit of this media type is {limit}",
        hint="Send large inputs as raw bytes (up to gateway.max_raw_bytes) or split them.",
    )


async def answer(send: Send, status: int, headers: Headers, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_problem(send: Send, problem: ProblemResponse, head: Head) -> None:
    await answer(send, problem.status, headers_for(problem, head), problem.body)


def headers_for(problem: ProblemResponse, head: Head) -> Headers:
    """The problem's headers, with `Connection: close` if the rest of the body is not read."""
    is_last = is_close_needed(problem.status, head)
    return [*problem.headers, (b"connection", b"close")] if is_last else problem.headers


def is_close_needed(status: int, head: Head) -> bool:
    """Whether the connection has to be closed because the rest of the body is too long to be read and dropped."""
    if status not in _UNREAD:
        return False
    length = head.get(b"content-length")
    if length is None:
        return status == 413 or b"transfer-encoding" in head
    return not length.isdigit() or int(length) > DRAIN_BYTES


def header_value(text: str) -> bytes:
    """The text as a header value: without control characters, in Latin-1, at most 256 bytes."""
    return text.translate(_HEADER_SAFE).encode("latin-1", "replace")[:256]


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_response(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`content` as the JSON body of a response."""
    return Response(orjson.dumps(content), status_code=status, media_type=JSON, headers=headers)
