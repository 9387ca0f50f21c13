from __future__ import annotations

import pytest

from penstock.benchmarks.connection import Target, parse_target, request_bytes
from penstock.errors import BadRequest


def test_a_target_keeps_path_and_query() -> None:
    assert parse_target("http://h:81/a/b?c=1") == Target("h", 81, "/a/b?c=1")
    assert parse_target("http://h") == Target("h", 80, "/")
    assert parse_target("https://h/a") == Target("h", 443, "/a", tls=True)


@pytest.mark.parametrize("url", ["ftp://h/", "h:80/x", "http:///x"])
def test_an_url_that_cannot_be_loaded_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        parse_target(url)


def test_a_request_is_written_whole() -> None:
    request = request_bytes(Target("h", 80, "/p"), method="POST", body=b"{}", headers={"Content-Type": "application/json"})
    assert request == b"POST /p HTTP/1.1\r\nHost: h:80\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    assert b"Content-Length" not in request_bytes(Target("h", 80, "/p"), method="DELETE")
    assert b"Content-Length: 0" in request_bytes(Target("h", 80, "/p"), method="POST")
