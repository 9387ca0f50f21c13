from __future__ import annotations

import asyncio
from typing import cast

import pytest

from penstock.errors import BadRequest
from penstock.loadtest.generator.connection import Connection, HttpTarget, parse_target, request_bytes


def test_a_target_keeps_path_and_query() -> None:
    assert parse_target("http://h:81/a/b?c=1") == HttpTarget("h", 81, "/a/b?c=1")
    assert parse_target("http://h") == HttpTarget("h", 80, "/")
    assert parse_target("https://h/a") == HttpTarget("h", 443, "/a", tls=True)


@pytest.mark.parametrize("url", ["ftp://h/", "h:80/x", "http:///x"])
def test_an_url_that_cannot_be_loaded_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_target(url)


def test_a_request_is_written_whole() -> None:
    request = request_bytes(HttpTarget("h", 80, "/p"), method="POST", body=b"{}", headers={"Content-Type": "application/json"})
    assert request == b"POST /p HTTP/1.1\r\nHost: h:80\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    assert b"Content-Length" not in request_bytes(HttpTarget("h", 80, "/p"), method="DELETE")
    assert b"Content-Length: 0" in request_bytes(HttpTarget("h", 80, "/p"), method="POST")


class Told:
    """An owner that records its calls, and a transport that can be closed."""

    def __init__(self) -> None:
        self.answers = 0
        self.closed = False

    def on_answer(self, connection: Connection) -> None:
        self.answers += 1

    def on_lost(self, connection: Connection) -> None: ...

    def write(self, data: bytes) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


def test_what_comes_unasked_is_no_answer() -> None:
    """Regression: a 408 that a server sent before it closed an idle connection counted as the answer to another call."""
    told = Told()
    connection = Connection(told)
    connection.connection_made(cast("asyncio.Transport", told))
    connection.data_received(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert (told.answers, told.closed) == (0, True)
