"""Which requests are sent at all; each redirect is a request of its own, and inherits where the first one began."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import httpx2
import pytest

from penstock.workers.fetch.origin import FetchFailed
from penstock.workers.fetch.web import BEGAN_HERE, Web, refuse_unsafe


def request(url: str, *, began_here: bool) -> httpx2.Request:
    return httpx2.Request("GET", url, extensions={BEGAN_HERE: began_here})


@pytest.mark.parametrize("url", ["https://127.0.0.1/m", "http://localhost:8080/m", "http://[::1]/m"])
def test_a_server_elsewhere_cannot_lead_to_this_machine(url: str) -> None:
    with pytest.raises(FetchFailed, match="which is this machine; that is not followed"):
        refuse_unsafe(request(url, began_here=False))
    refuse_unsafe(request(url, began_here=True))


def test_nothing_is_asked_over_plain_http_elsewhere() -> None:
    for began_here in (True, False):
        with pytest.raises(FetchFailed, match="over plain http"):
            refuse_unsafe(request("http://h.example/m", began_here=began_here))
        refuse_unsafe(request("https://h.example/m", began_here=began_here))


@pytest.fixture
def circle() -> Iterator[str]:
    class Circle(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("location", "/again")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Circle) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/m"
        server.shutdown()


def test_a_circle_of_redirects_ends(circle: str) -> None:
    web = Web(stall_s=5.0)
    with pytest.raises(FetchFailed, match="redirects in a circle"):
        web.size_of(circle, {}, what="m")
    web.close()
