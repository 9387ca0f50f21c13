"""A receiver of webhooks: a real HTTP server that keeps what it gets, and answers as a test says."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Received:
    """One request. `headers` by their lower-case names."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass(frozen=True)
class Say:
    """An answer: a status with headers after `wait_s`, and a body that is broken off after its first byte if `cut`."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    cut: bool = False


Answer = Callable[[Received], Say]


class Receiver:
    """`answer` may be replaced at any time. `url` is its address, with a slash at the end."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_address[1]}/"
        self.requests: list[Received] = []
        self.answer: Answer = lambda request: Say()

    def of(self, path: str) -> list[Received]:
        """The requests for a path, whatever their query."""
        return [one for one in list(self.requests) if one.path.partition("?")[0] == path]


@contextmanager
def receiver(port: int = 0, *, certificate: Path | None = None) -> Iterator[Receiver]:
    """`certificate`: a file with a key and its certificate, for TLS."""
    server = _Server(("127.0.0.1", port), _Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    found = server.receiver = Receiver(server)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A gateway that was killed leaves its connections, and nobody needs to read of that."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        receiver: Receiver = self.server.receiver  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Received(self.path, headers, body, time.time())
        receiver.requests.append(request)
        say = receiver.answer(request)
        time.sleep(say.wait_s)
        self._answer(say)

    def _answer(self, say: Say) -> None:
        try:
            self.send_response(say.status)
            for name, value in say.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "10" if say.cut else "0")
            self.end_headers()
            if say.cut:
                self.wfile.write(b"x")
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        return
