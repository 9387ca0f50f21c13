from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from penstock.gateway.asgi.connection import (
    BODY_BYTES_PER_S,
    BODY_S,
    HEAD_S,
    LINGER_S,
    MAX_HEAD_BYTES,
    GuardedProtocol,
    Lifetime,
    guarded,
)
from penstock.gateway.asgi.door import Door

HEAD = b"POST /x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n"


class Wire:
    """A transport and a loop for one connection, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sent = b""
        self.closed = False
        self.aborted = False
        self.unsent = 0
        self.later: list[tuple[float, Any]] = []
        self.task: Any = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, action: Any) -> None:
        self.later.append((delay, action))

    def create_task(self, work: Any) -> Any:
        work.close()
        return asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        self.sent += data

    def write_eof(self) -> None: ...

    def resume_reading(self) -> None: ...

    def pause_reading(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> None:
        return None


async def app(scope: Any, receive: Any, send: Any) -> None: ...


@pytest.fixture
async def connection() -> tuple[GuardedProtocol, Wire]:
    wire = Wire()
    config = uvicorn.Config(app, http=GuardedProtocol, ws="none", lifespan="off", log_config=None)
    protocol = GuardedProtocol(config, ServerState(), {}, _loop=cast("asyncio.AbstractEventLoop", wire))
    protocol.connection_made(cast("asyncio.Transport", wire))
    return protocol, wire


async def test_a_connection_that_sends_nothing_is_closed_without_a_word(connection: tuple[GuardedProtocol, Wire]) -> None:
    """Regression: a load generator read the 408 on an idle connection as the response to its first request."""
    protocol, wire = connection
    protocol.enforce(wire.now + HEAD_S)
    assert not wire.closed
    protocol.enforce(wire.now + HEAD_S + 0.1)
    assert wire.closed
    assert wire.sent == b""


async def test_a_head_that_trickles_in_is_not_given_more_time(connection: tuple[GuardedProtocol, Wire]) -> None:
    protocol, wire = connection
    protocol.data_received(HEAD[:10])
    wire.now += HEAD_S - 1
    protocol.data_received(HEAD[10:20])
    protocol.enforce(wire.now + 1.1)
    assert wire.sent.startswith(b"HTTP/1.1 408 ")
    [(delay, close)] = wire.later
    assert delay == LINGER_S
    close()
    assert wire.closed


async def test_a_body_has_thirty_seconds_and_one_more_per_quarter_mebibyte(connection: tuple[GuardedProtocol, Wire]) -> None:
    protocol, wire = connection
    protocol.data_received(HEAD)
    assert protocol.due_at == wire.now + BODY_S
    protocol.data_received(b"x" * (BODY_BYTES_PER_S // 2))
    assert protocol.due_at == wire.now + BODY_S + 0.5
    protocol.enforce(wire.now + BODY_S + 0.6)
    assert wire.sent.startswith(b"HTTP/1.1 408 ")


async def test_a_request_that_has_arrived_has_no_deadline_here(connection: tuple[GuardedProtocol, Wire]) -> None:
    protocol, _ = connection
    protocol.data_received(HEAD.replace(b"1000000", b"1") + b"x")
    assert protocol.due_at == math.inf


async def test_a_head_without_end_is_cut_off_and_no_more_of_it_is_kept(connection: tuple[GuardedProtocol, Wire]) -> None:
    protocol, wire = connection
    protocol.data_received(b"GET / HTTP/1.1\r\nx: " + b"a" * MAX_HEAD_BYTES)
    assert wire.sent.startswith(b"HTTP/1.1 431 ")
    before = wire.sent
    protocol.data_received(b"a" * MAX_HEAD_BYTES)
    assert wire.sent == before


async def test_the_rest_of_a_refused_upload_that_never_ends_is_closed_without_a_second_answer(
    connection: tuple[GuardedProtocol, Wire],
) -> None:
    protocol, wire = connection
    protocol.data_received(HEAD)
    protocol.cycle.response_started = protocol.cycle.response_complete = True
    protocol.enforce(wire.now + BODY_S + 1)
    assert (wire.sent, wire.closed) == (b"", True)


async def test_a_reader_that_takes_nothing_of_its_answer_is_cut_off_and_a_slow_one_is_not(
    connection: tuple[GuardedProtocol, Wire],
) -> None:
    protocol, wire = connection
    protocol.due_at = math.inf
    for unsent in (5_000, 4_999, 4_998):
        wire.unsent = unsent
        wire.now += BODY_S
        protocol.enforce(wire.now)
    assert not wire.aborted
    protocol.enforce(wire.now + BODY_S + 1)
    assert wire.aborted


async def test_a_gateway_may_be_told_to_be_less_patient() -> None:
    wire = Wire()
    hasty = guarded(head_s=0.5, body_s=1.0, door=Door(), lifetime=Lifetime())
    config = uvicorn.Config(app, http=hasty, ws="none", lifespan="off", log_config=None)
    config.load()
    protocol = config.http_protocol_class(config, ServerState(), {}, _loop=cast("asyncio.AbstractEventLoop", wire))  # type: ignore[call-arg]
    protocol.connection_made(cast("asyncio.Transport", wire))
    assert isinstance(protocol, GuardedProtocol)
    protocol.data_received(HEAD[:10])
    protocol.enforce(wire.now + 0.6)
    assert wire.sent.startswith(b"HTTP/1.1 408 ")
