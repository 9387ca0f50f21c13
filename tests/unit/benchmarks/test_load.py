"""Against a real server of a few lines, on a thread of its own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from penstock.benchmarks.connection import parse_target, request_bytes
from penstock.benchmarks.drivers import constant, poisson
from penstock.benchmarks.load import Plan, own_limits, run_load

FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
BARE = b"HTTP/1.0 200 OK\r\n\r\nok"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull"


@contextmanager
def server(answer: bytes, *, stays_open: bool = True, delay_s: float = 0.0) -> Iterator[str]:
    """Answers every request with `answer`; its URL."""
    bound: Future[int] = Future()
    stop: Future[None] = Future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(delay_s)
                writer.write(answer)
                if not stays_open:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        bound.set_result(listening.sockets[0].getsockname()[1])
        await asyncio.wrap_future(stop)
        listening.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.result(timeout=5)}/"
    finally:
        stop.set_result(None)
        thread.join()


def plan(url: str, **options: object) -> Plan:
    target = parse_target(url)
    fields: dict[str, object] = {"requests": itertools.repeat(request_bytes(target)), "connections": 4, "duration_s": 0.2}
    return Plan(target, **{**fields, **options})  # type: ignore[arg-type]


def test_a_closed_loop_keeps_asking_until_the_time_is_over() -> None:
    with server(FINE) as url:
        report = run_load(plan(url))
    assert report.summary.count > 50
    assert report.summary.errors == {}
    assert report.unfinished == 0
    assert report.bodies == {200: "ok"}


def test_a_closed_loop_ends_when_its_requests_are_used_up() -> None:
    with server(FINE) as url:
        report = run_load(plan(url, requests=iter([request_bytes(parse_target(url))] * 7), duration_s=30.0))
    assert report.summary.count == 7
    assert len(report.latencies_s) == 7


@pytest.mark.parametrize("answer", [CLOSING, BARE])
def test_a_server_that_closes_after_each_answer_is_asked_again(answer: bytes) -> None:
    with server(answer, stays_open=False) as url:
        report = run_load(plan(url))
    assert report.summary.count > 10
    assert report.summary.errors == {}


def test_refusals_are_counted_by_status_with_what_was_said() -> None:
    with server(BUSY) as url:
        report = run_load(plan(url))
    assert report.summary.count == 0
    assert report.summary.errors["503"] > 10
    assert report.bodies[503] == "full"


def test_a_connection_dropped_in_the_middle_counts_as_lost() -> None:
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", stays_open=False) as url:
        report = run_load(plan(url))
    assert report.summary.count == 0
    assert report.summary.errors["lost"] >= 4


def test_an_open_loop_offers_what_its_schedule_says() -> None:
    with server(FINE) as url:
        report = run_load(plan(url, rate=500.0, arrivals="constant", connections=32))
    assert report.offered == 99
    assert report.summary.count == 99
    assert report.starved == 0


def test_open_loop_latency_counts_from_the_intended_moment() -> None:
    with server(FINE, delay_s=0.05) as url:
        # One connection takes 20 requests a second of the 100 offered: the last ones have waited for most of the run.
        report = run_load(plan(url, rate=100.0, arrivals="constant", connections=1))
    assert report.starved > 10
    assert report.summary.max_ms > 500.0
    assert any("no idle connection" in limit for limit in report.limits)


def test_what_has_no_answer_at_the_end_is_counted() -> None:
    with server(FINE, delay_s=1.0) as url:
        report = run_load(plan(url, rate=100.0, arrivals="constant", connections=32, drain_s=0.05))
    assert report.unfinished == report.offered == 19


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    with server(FINE) as url:
        pass
    with pytest.raises(OSError, match="refused"):
        run_load(plan(url))


def test_the_generator_says_when_it_was_the_limit() -> None:
    assert own_limits(0.5, 0.001, 0) == []
    assert len(own_limits(0.95, 0.006, 3)) == 3


def test_poisson_arrivals_ascend_at_the_asked_rate_and_repeat_with_their_seed() -> None:
    moments = list(itertools.islice(poisson(1_000.0, 7), 10_000))
    assert moments == sorted(moments)
    assert 9.5 < moments[-1] < 10.5
    assert moments == list(itertools.islice(poisson(1_000.0, 7), 10_000))


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert list(itertools.islice(constant(4.0), 3)) == [0.25, 0.5, 0.75]
