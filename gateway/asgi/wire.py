"""Reading bodies under their limits and sending responses, in plain ASGI messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
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


class BodyMemory:
    """The memory limit of all unfinished uploads of this process; each owner may use half of it.

    Without keys all uploads have the empty owner, which may use all of it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: Counter[str] = Counter()

    def take(self, size: int, owner: str = "") -> None:
        """Raises `GatewayBusy` if `size` more bytes would exceed the limit, or the owner's half."""
        if self._taken.total() + size > self._limit:
            raise GatewayBusy(f"this gateway process holds {self._limit} bytes of unfinished uploads", retry_after_s=5.0)
        share = self._limit // 2 if owner else self._limit
        if self._taken[owner] + size > share:
            raise GatewayBusy(
                f"this gateway process holds {share} bytes of this owner's unfinished uploads, half of the limit for all",
                retry_after_s=5.0,
            )
        self._taken[owner] += size

    def give_back(self, size: int, owner: str = "") -> None:
        self._taken[owner] -= size
        if not self._taken[owner]:
            del self._taken[owner]


async def read_body(receive: Receive, head: Head, *, limit: int, memory: BodyMemory, owner: str) -> bytes:
    """The whole body; raises `TooLarge` over `limit` bytes and `GatewayBusy` if unfinished uploads fill `memory`.

    Has no deadline of its own: `GuardedProtocol` disconnects a slow client, and this then raises `ClientGone`.
    """
    declared = declared_length(head)
    if declared is not None and declared > limit:
        raise too_large(declared, limit)
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    body: bytes = message["body"]
    if message.get("more_body"):
        body = await _read_rest(receive, body, limit=limit, memory=memory, owner=owner)
    if len(body) > limit:
        raise too_large(len(body), limit)
    return body


async def json_body(request: Request, limits: GatewaySettings, memory: BodyMemory) -> Any:
    """The body's value; raises if the body is too large, encoded, or not JSON."""
    head = read_head(request.headers.raw)
    refuse_encoded(head)
    require_json(head)
    receive: Receive = request.receive  # type: ignore[assignment]
    owner = request.scope["caller"].owner
    body = await read_body(receive, head, limit=limits.max_json_bytes, memory=memory, owner=owner)
    value = bodies.parse_json(body)
    return await asyncio.to_thread(orjson.loads, body) if value is bodies.UNBUILT else value


async def _read_rest(receive: Receive, first: bytes, *, limit: int, memory: BodyMemory, owner: str) -> bytes:
    parts: list[bytes] = []
    message: dict[str, Any] = {"type": "http.request", "body": first, "more_body": True}
    taken = 0
    try:
        while taken <= limit:
            memory.take(len(message["body"]), owner)
            taken += len(message["body"])
            parts.append(message["body"])
            if not message.get("more_body"):
                break
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
        return b"".join(parts)
    finally:
        memory.give_back(taken, owner)


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
