"""Slow, endless, doubled and enormous input over real sockets: the gateway answers once and closes the connection."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from penstock.errors import CapacityError
from penstock.gateway.asgi.wire import BodyMemory
from penstock.gateway.auth.keys import EVERYBODY
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.security.keyed import ALICE, OPERATIONS, SUBMITS, filled, keyed_gateway, send

MIB = 1024 * 1024
KEY = f"Authorization: {ALICE.header['authorization']}\r\n".encode()
POST = b"POST /predictions/square HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + KEY
PATIENCE_S = 0.5
# The deadline is so long that a thousand clients are connected at the same time even on a busy machine with two cores.
CROWD_PATIENCE_S = 4.0
DRIP_S = 0.5
SLOW = 1_000
FILES = 4_096


@pytest.fixture(scope="module")
def impatient(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    """A gateway with keys and with deadlines so short that a test can wait for them."""
    with files_enough(), keyed_gateway(redis_url, tmp_path_factory.mktemp("impatient"), **patience(PATIENCE_S)) as client:
        yield client


@pytest.fixture
def unhurried(redis_url: str, tmp_path: Path) -> Iterator[GatewayClient]:
    with files_enough(), keyed_gateway(redis_url, tmp_path, **patience(CROWD_PATIENCE_S)) as client:
        yield client


def patience(seconds: float) -> dict[str, Any]:
    return dict.fromkeys(("body_timeout_s", "idle_timeout_s"), seconds)


@contextlib.contextmanager
def files_enough() -> Iterator[None]:
    """Raises the limit of open files, which the gateway inherits.

    Each of a thousand connections is one file in this process and one in the gateway.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < FILES:
        pytest.skip(f"this system allows {hard} open files, this test needs {FILES}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def address(client: httpx2.Client) -> tuple[str, int]:
    return client.base_url.host, client.base_url.port or 80


def exchange(client: httpx2.Client, data: bytes, *, timeout_s: float = 5.0) -> bytes:
    """Sends `data`, and returns all bytes that arrive until the gateway closes the connection."""
    with socket.create_connection(address(client), timeout=timeout_s) as connection:
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk
    return answer


SMUGGLED = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
AMBIGUOUS = {
    "length-and-chunked": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked-and-length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two-lengths": b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "a-list-of-lengths": b"Content-Length: 1, 1\r\n\r\nx",
    "signed-length": b"Content-Length: +1\r\n\r\nx",
    "negative-length": b"Content-Length: -1\r\n\r\nx",
    "hexadecimal-length": b"Content-Length: 0x1\r\n\r\nx",
    "enormous-length": b"Content-Length: 99999999999999999999999\r\n\r\nx",
    "unknown-coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked-not-last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "space-before-colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "null-in-value": b"X-A: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "line-feed-in-extension": b"Transfer-Encoding: chunked\r\n\r\n5;a\nb\r\nhello\r\n0\r\n\r\n",
    "bad-chunk-size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "enormous-chunk-size": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "folded-header": b"X-A: a\r\n b: c\r\nTransfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("rest", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_a_request_that_two_readers_would_cut_differently_gets_one_answer_and_the_end(
    impatient: GatewayClient, rest: bytes
) -> None:
    answer = exchange(impatient, POST + rest + SMUGGLED)
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), answer
    assert b'"live"' not in answer


def test_two_good_requests_on_one_connection_are_two(impatient: GatewayClient) -> None:
    """Otherwise the test above would pass for a server that reads only one request per connection."""
    assert exchange(impatient, SMUGGLED * 2).count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize(
    "headers", [{f"h{number}": "a" for number in range(5_000)}, {"h": "a" * 40_000}], ids=["5000", "large"]
)
def test_a_header_bomb_is_refused_whatever_the_route(
    gateway: httpx2.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    assert send(gateway, method, path, key=ALICE, headers=headers).status_code == 431


def test_a_head_without_end_is_cut_off_at_64_kib(impatient: GatewayClient) -> None:
    for endless in (b"GET /livez HTTP/1.1\r\nx: " + b"a" * 300_000, b"GET /" + b"a" * 300_000):
        answer = exchange(impatient, endless)
        assert answer.startswith(b"HTTP/1.1 431 "), answer[:80]


BEGINNINGS = {
    "silent": b"",
    "half-a-line": b"GET /li",
    "half-a-head": b"GET /livez HTTP/1.1\r\nHost: loc",
    "half-a-body": POST + b"Content-Length: 100\r\n\r\n{",
    "half-a-chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nfff\r\nhe",
    "idle-after-an-answer": SMUGGLED,
}


async def trickle(client: GatewayClient, beginning: bytes) -> tuple[float, float, bytes]:
    """Sends `beginning`, then at most one byte in half a second. Returns the monotonic start and end times and the answer."""
    reader, writer = await asyncio.open_connection(*address(client))
    writer.write(beginning)
    started, answer = time.monotonic(), b""
    drip = asyncio.create_task(_drip(writer)) if beginning and beginning is not SMUGGLED else None
    try:
        async with asyncio.timeout(60.0):
            while chunk := await reader.read(65_536):
                answer += chunk
    except ConnectionError:
        pass
    finally:
        if drip:
            drip.cancel()
        writer.close()
    return started, time.monotonic(), answer


async def _drip(writer: asyncio.StreamWriter) -> None:
    while True:
        await asyncio.sleep(DRIP_S)
        writer.write(b"a")


async def _slow_crowd(client: GatewayClient) -> tuple[list[tuple[float, float, bytes]], list[float]]:
    starts = islice(cycle(BEGINNINGS.values()), SLOW)
    crowd = [asyncio.create_task(trickle(client, start)) for start in starts]
    waits: list[float] = []
    async with httpx2.AsyncClient(base_url=client.base_url) as other:
        last = time.monotonic()
        while not all(task.done() for task in crowd) and len(waits) < 200:
            before = time.monotonic()
            # This loop also drives the slow clients: if the machine stood still, this client was slow as well, and the gateway
            # may have refused its request or closed its connection.
            try:
                status = (await other.get("/livez")).status_code
            except (httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.TimeoutException):
                status = 0
            now = time.monotonic()
            assert status == 200 or (status in (408, 0) and now - last > CROWD_PATIENCE_S / 2)
            waits.append(now - before)
            last = now
            await asyncio.sleep(0.01)
    return [await task for task in crowd], sorted(waits)


async def test_a_thousand_slow_clients_are_hung_up_on_and_others_do_not_feel_them(unhurried: GatewayClient) -> None:
    ends, waits = await _slow_crowd(unhurried)
    all_there = max(began for began, _, _ in ends)
    assert sum(ended > all_there for _, ended, _ in ends) > SLOW // 2, "they did not come together"
    assert max(ended - began for began, ended, _ in ends) < CROWD_PATIENCE_S + 15.0
    answers = [(beginning, answer) for (_, _, answer), beginning in zip(ends, cycle(BEGINNINGS.values()), strict=False)]
    # Clients that sent nothing get no response. A client that still sends while the connection closes may lose its response.
    assert {answer for beginning, answer in answers if not beginning} == {b""}
    answered = [answer for beginning, answer in answers if beginning and answer]
    assert len(answered) > SLOW // 2
    assert all(answer.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 200 ")) for answer in answered)
    assert waits[len(waits) // 2] < 0.2


def test_a_client_that_does_not_read_its_answer_is_cut_off(impatient: GatewayClient, redis_url: str) -> None:
    hand = Hand(redis_url)
    job = impatient.post("/v1/models/square/jobs", json={"x": 4}, headers=ALICE.header).json()["id"]
    for claimed in hand.claim().jobs:
        hand.finish(claimed, b'"' + b"a" * 16 * MIB + b'"')
    hand.store.close()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(10.0)
        connection.connect(address(impatient))
        connection.sendall(f"GET /v1/jobs/{job}/result HTTP/1.1\r\nHost: localhost\r\n".encode() + KEY + b"\r\n")
        time.sleep(3.0)  # the client is slow on purpose; this is no wait for the gateway
        received = 0
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(1 << 20):
                received += len(chunk)
    assert received < 16 * MIB


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
@pytest.mark.parametrize("media", ["application/json", "image/png"])
def test_a_body_of_100_mib_is_refused_without_being_kept(gateway: GatewayClient, media: str, declared: bool) -> None:
    limit = 4 * MIB if media == "application/json" else 32 * MIB
    watched = psutil.Process(gateway.process.pid)
    before = watched.memory_info().rss
    chunks = (b" " * MIB for _ in range(100))
    headers = {**ALICE.header, "content-type": media, **({"content-length": str(100 * MIB)} if declared else {})}
    # The gateway closes the connection without reading the rest of the body, and the answer may be lost with the connection.
    with contextlib.suppress(httpx2.TransportError):
        assert gateway.post("/v1/models/square/jobs", content=chunks, headers=headers).status_code == 413
    grown = watched.memory_info().rss - before
    assert grown < 16 * MIB + (0 if declared else limit), f"{grown / MIB:.0f} MiB"


def test_all_uploads_together_have_a_limit_too() -> None:
    room, one, other = BodyMemory(100), {"caller": EVERYBODY}, {"caller": EVERYBODY}
    room.take(60, one)
    with pytest.raises(CapacityError):
        room.take(50, other)
    room.give_back(one)
    room.take(100, other)


@pytest.mark.parametrize("path", SUBMITS)
@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x-gzip", "identity, gzip"])
def test_no_body_is_inflated(gateway: httpx2.Client, path: str, coding: str) -> None:
    answer = gateway.post(filled(path), content=b"\x1f\x8b" + b"x" * 99, headers={**ALICE.header, "content-encoding": coding})
    # The Open Inference Protocol has compressed bodies, which are bounded: its test_open_inference.py has a bomb.
    is_read = path.startswith("/v2/") and coding in ("gzip", "deflate")
    assert answer.status_code == (400 if is_read else 415)


@pytest.mark.parametrize("path", SUBMITS)
def test_a_flood_of_form_fields_or_part_headers_is_refused_at_once(gateway: GatewayClient, path: str) -> None:
    flood = b"&".join(b"a%d=1" % number for number in range(100_000))
    parts = b"--b\r\n" + b"".join(b"h%d: a\r\n" % number for number in range(100_000)) + b"\r\nx\r\n--b--\r\n"
    many = b"".join(b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n' for _ in range(5_000)) + b"--b--\r\n"
    spent = psutil.Process(gateway.process.pid).cpu_times
    before = spent()
    # A form is one input, so the path for many inputs takes none, nor do those whose body holds more than the input.
    of_parts = 415 if path.endswith(":batch") or path.startswith(("/v2/", "/cog/")) else 400
    for body, media, status in (
        (flood, "application/x-www-form-urlencoded", 415),
        (parts, "multipart/form-data; boundary=b", of_parts),
        (many, "multipart/form-data; boundary=b", of_parts),
    ):
        answer = gateway.post(filled(path), content=body, headers={**ALICE.header, "content-type": media})
        assert answer.status_code == status, answer.text
    after = spent()
    # The limit is on processor time and not on elapsed time, because other processes use the machine too.
    assert after.user + after.system - before.user - before.system < 1.0


def test_several_ranges_are_not_served(gateway: httpx2.Client) -> None:
    ranges = "bytes=" + ",".join(f"{n}-" for n in range(2_000))
    assert gateway.get("/v1/models", headers={**ALICE.header, "range": ranges}).status_code == 200


def test_the_log_of_all_this_is_small(gateway_log: Path) -> None:
    assert gateway_log.stat().st_size < MIB
