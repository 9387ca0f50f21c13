"""Raw ASGI in and out: a body read under its limit, an answer in two messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import Request

from penstock.errors import BadRequest, TooLarge, UnsupportedMedia
from penstock.gateway.asgi import bodies
from penstock.gateway.asgi.negotiation import JSON, Head, base_type, read_head, refuse_encoded
from penstock.gateway.asgi.problems import GatewayBusy, Headers, ProblemResponse
from penstock.gateway.options import GatewayOptions

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# A refused upload of up to this much is let run out, so that the client gets to read why; above, the connection is closed.
DRAIN_BYTES = 64 * 1024 * 1024
# Refusals that come before the body was read.
_UNREAD = frozenset({401, 403, 413, 429, 503})
_HEADER_SAFE = str.maketrans({chr(code): None for code in (*range(32), 127)})


class ClientGone(Exception):
    """The client hung up before its request was whole; nobody is left to answer."""


class BodyMemory:
    """The memory that bodies still on their way may take in this process, all together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0

    def take(self, size: int) -> None:
        """Raises `GatewayBusy` when there is no room for `size` bytes more."""
        if self._taken + size > self._limit:
            raise GatewayBusy(f"this gateway process holds {self._limit} bytes of unfinished uploads", retry_after_s=5.0)
        self._taken += size

    def give_back(self, size: int) -> None:
        self._taken -= size


async def read_body(receive: Receive, head: Head, *, limit: int, room: BodyMemory) -> bytes:
    """The whole body; raises `TooLarge` over `limit` bytes and `GatewayBusy` when uploads fill the room.

    No deadline of its own: the connection's guard hangs up on a slow client, and this raises `ClientGone`.
    """
    declared = declared_length(head)
    if declared is not None and declared > limit:
        raise too_large(declared, limit)
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    body: bytes = message["body"]
    if message.get("more_body"):
        body = await _read_rest(receive, body, limit=limit, room=room)
    if len(body) > limit:
        raise too_large(len(body), limit)
    return body


async def json_body(request: Request, options: GatewayOptions, room: BodyMemory) -> Any:
    """The body as a value; raises for what is too large, encoded, or no JSON."""
    head = read_head(request.headers.raw)
    refuse_encoded(head)
    media = base_type(head.get(b"content-type", b"application/json").decode("latin-1"))
    if media != JSON:
        raise UnsupportedMedia(f"this path takes {JSON}, not {media[:80]!r}")
    receive: Receive = request.receive  # type: ignore[assignment]
    body = await read_body(receive, head, limit=options.max_json_bytes, room=room)
    value = bodies.parse_json(body, max_depth=options.max_json_depth)
    return await asyncio.to_thread(orjson.loads, body) if value is bodies.UNBUILT else value


async def _read_rest(receive: Receive, first: bytes, *, limit: int, room: BodyMemory) -> bytes:
    body = bytearray()
    message: dict[str, Any] = {"type": "http.request", "body": first, "more_body": True}
    taken = 0
    try:
        while len(body) <= limit:
            room.take(len(message["body"]))
            taken += len(message["body"])
            body += message["body"]
            if not message.get("more_body"):
                break
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
        return bytes(body)
    finally:
        room.give_back(taken)


def declared_length(head: Head) -> int | None:
    given = head.get(b"content-length")
    if given is None:
        return None
    try:
        return int(given)
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
    headers = problem.headers
    if must_close(problem.status, head):
        headers = [*headers, (b"connection", b"close")]
    await answer(send, problem.status, headers, problem.body)


def must_close(status: int, head: Head) -> bool:
    """Whether what may follow of the body is not worth reading."""
    if status not in _UNREAD:
        return False
    given = head.get(b"content-length")
    if given is None:
        return status == 413 or b"transfer-encoding" in head
    return not given.isdigit() or int(given) > DRAIN_BYTES


def header_value(text: str) -> bytes:
    """Safe to send: without control characters and other alphabets."""
    return text.translate(_HEADER_SAFE).encode("latin-1", "replace")[:256]


def rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
