"""How many writes the HTTP server makes for a response, and what each write holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import uvicorn

from penstock.gateway.asgi.connection import GuardedProtocol

GET = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
LENGTH = [(b"content-length", b"2")]


class Wire(asyncio.Transport):
    """A transport that remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(b"".join(list_of_data))

    def close(self) -> None:
        self.closed = True

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def resume_reading(self) -> None:
        pass


async def answered(request: bytes, messages: Sequence[dict[str, Any]]) -> Wire:
    """Return what is written for `request` if the application sends each of `messages` in a turn of the loop of its own."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if b"expect" in request:
            await receive()
        for message in messages:
            await send(message)
            await asyncio.sleep(0)

    config = uvicorn.Config(app, http=GuardedProtocol, ws="none", lifespan="off", log_config=None, server_header=False)
    config.load()
    wire, state = Wire(), uvicorn.server.ServerState()
    protocol = GuardedProtocol(config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop())
    protocol.connection_made(wire)
    protocol.data_received(request)
    await asyncio.gather(*state.tasks, return_exceptions=True)
    if protocol.timeout_keep_alive_task is not None:
        protocol.timeout_keep_alive_task.cancel()
    return wire


def start(headers: Sequence[tuple[bytes, bytes]] = ()) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": list(headers)}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def test_a_head_and_its_body_are_one_write() -> None:
    wire = await answered(GET, [start(LENGTH), body(b"ok")])
    assert wire.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]


async def test_a_body_in_parts_follows_its_head() -> None:
    wire = await answered(GET, [start(LENGTH), body(b"o", more=True), body(b"k")])
    assert wire.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no", b"k"]


OLD = b"GET / HTTP/1.0\r\nconnection: Keep-Alive\r\n\r\n"


async def test_an_old_client_that_asks_for_it_keeps_its_connection() -> None:
    # Regression: HTTP/1.0 connections were always closed, so `ab -k` measured the opening of connections.
    wire = await answered(OLD, [start(LENGTH), body(b"ok")])
    assert wire.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nok"]
    assert not wire.closed


@pytest.mark.parametrize(
    ("request_", "headers"),
    [
        (OLD.replace(b"Keep-Alive", b"close"), LENGTH),
        (b"GET / HTTP/1.0\r\n\r\n", LENGTH),
        (OLD, [*LENGTH, (b"connection", b"close")]),
        (OLD, []),
    ],
)
async def test_an_old_clients_connection_ends_where_nothing_else_tells_the_end(
    request_: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    wire = await answered(request_, [start(headers), body(b"ok")])
    assert wire.closed
    assert b"keep-alive" not in b"".join(wire.writes)


async def test_a_stream_shows_its_head_at_once() -> None:
    wire = await answered(GET, [start(), body(b"ok", more=True), body(b"")])
    assert wire.writes[0] == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "messages"),
    [(GET.replace(b"GET", b"HEAD"), [start(LENGTH), body(b"")]), (GET, [start([(b"content-length", b"0")]), body(b"")])],
)
async def test_an_answer_without_a_body_does_not_wait_for_one(request_: bytes, messages: list[dict[str, Any]]) -> None:
    wire = await answered(request_, messages)
    assert b"".join(wire.writes).endswith(b"\r\n\r\n")


async def test_an_answer_broken_off_behind_its_head_shows_the_head() -> None:
    wire = await answered(GET, [start(LENGTH)])
    assert (wire.writes, wire.closed) == ([b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"], True)


async def test_a_refusal_ahead_of_the_body_gets_through_before_the_connection_is_closed() -> None:
    # Regression: the connection was closed at once with unread bytes in it; that resets it, and the client loses the refusal.
    request = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\nx"
    wire = await answered(request, [start([*LENGTH, (b"connection", b"close")]), body(b"no")])
    assert (wire.writes[-1][-2:], wire.ended, wire.closed) == (b"no", True, False)


async def test_a_client_that_asks_first_is_told_to_go_on_before_the_answer() -> None:
    request = b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\nx"
    wire = await answered(request, [start(LENGTH), body(b"ok")])
    assert wire.writes == [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]
