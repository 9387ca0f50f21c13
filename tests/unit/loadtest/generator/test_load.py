"""Loads against a real server of a few lines, in a thread of its own."""

from __future__ import annotations

import itertools
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load import LoadSpec, own_limits, run_load

FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
BARE = b"HTTP/1.0 200 OK\r\n\r\nok"
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull"


class Answering(socketserver.ThreadingTCPServer):
    """Answers every request with `answer`, after `delay_s` or when it stops."""

    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, answer: bytes, *, stays_open: bool, delay_s: float) -> None:
        self.answer, self.stays_open, self.delay_s = answer, stays_open, delay_s
        self.stopping = threading.Event()
        super().__init__(("127.0.0.1", 0), Conversation)


class Conversation(socketserver.BaseRequestHandler):
    server: Answering

    def handle(self) -> None:
        with suppress(ConnectionError):
            # In these tests each request arrives in one piece.
            while self.request.recv(65_536):
                if self.server.delay_s:
                    self.server.stopping.wait(self.server.delay_s)
                self.request.sendall(self.server.answer)
                if not self.server.stays_open:
                    return


@contextmanager
def server(answer: bytes, *, stays_open: bool = True, delay_s: float = 0.0) -> Iterator[str]:
    """The URL of a server in a thread of its own."""
    with Answering(answer, stays_open=stays_open, delay_s=delay_s) as answering:
        thread = threading.Thread(target=answering.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{answering.server_address[1]}/"
        finally:
            answering.stopping.set()
            answering.shutdown()
            thread.join()


def plan(url: str, **options: object) -> LoadSpec:
    target = parse_target(url)
    fields: dict[str, object] = {"requests": itertools.repeat(request_bytes(target)), "connections": 4, "duration_s": 0.2}
    return LoadSpec(target, **{**fields, **options})  # type: ignore[arg-type]


def some(url: str, count: int) -> dict[str, object]:
    """A load of exactly `count` requests, however slow the machine is."""
    return {"requests": iter([request_bytes(parse_target(url))] * count), "duration_s": 30.0}


def test_a_closed_loop_keeps_asking_until_the_time_is_over() -> None:
    with server(FINE) as url:
        report = run_load(plan(url, duration_s=0.6))
    assert report.summary.count > 4
    assert report.summary.errors == {}
    assert report.unfinished == 0
    assert report.bodies == {200: "ok"}


def test_a_closed_loop_ends_when_its_requests_are_used_up() -> None:
    with server(FINE) as url:
        report = run_load(plan(url, **some(url, 7)))
    assert report.summary.count == 7
    assert len(report.latencies_s) == 7


@pytest.mark.parametrize("answer", [CLOSING, BARE])
def test_a_server_that_closes_after_each_answer_is_asked_again(answer: bytes) -> None:
    with server(answer, stays_open=False) as url:
        report = run_load(plan(url, **some(url, 20)))
    assert report.summary.errors == {}
    assert report.summary.count == 20


def test_refusals_are_counted_by_status_with_the_first_answer() -> None:
    with server(BUSY) as url:
        report = run_load(plan(url, **some(url, 20)))
    assert report.summary.count == 0
    assert report.summary.errors == {"503": 20}
    assert report.bodies[503] == "full"


def test_a_connection_dropped_in_the_middle_counts_as_lost() -> None:
    with server(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", stays_open=False) as url:
        report = run_load(plan(url, **some(url, 20)))
    assert report.summary.count == 0
    assert report.summary.errors == {"lost": 20}


def test_an_open_loop_offers_what_its_schedule_says() -> None:
    with server(FINE) as url:
        report = run_load(plan(url, rate=500.0, arrivals="constant", connections=100))
    assert report.offered == 99
    assert report.summary.count == 99
    assert report.starved == 0


def test_open_loop_latency_counts_from_the_intended_moment() -> None:
    with server(FINE, delay_s=0.05) as url:
        # One connection carries 20 of the 100 requests per second, so the last ones wait for most of the run.
        report = run_load(plan(url, rate=100.0, arrivals="constant", connections=1))
    assert report.starved > 10
    assert report.summary.max_ms > 500.0
    assert any("no idle connection" in limit for limit in report.limits)


def test_what_has_no_answer_at_the_end_is_counted() -> None:
    # The delay is longer than any machine stalls; the test ends when the server stops.
    with server(FINE, delay_s=60.0) as url:
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
