"""A real HTTP server that follows a script: it records each request and sends the next answer of the script."""

from __future__ import annotations

import json
import ssl
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

JOB_ID = "01k9xw3c5t8ze2m4v6b7n0q1rs-square"
LINKS = {"self": "/linked/job", "result": "/linked/result", "cancel": "/linked/cancel"}


@dataclass(frozen=True)
class Line:
    """One answer of the script. `hang_up` closes the connection instead of answering."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    hang_up: bool = False

    def content(self) -> bytes:
        return self.raw if self.raw is not None else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes


@dataclass
class Gateway:
    url: str
    script: deque[Line]
    seen: list[Seen]

    def paths(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.seen]


def job(status: str = "queued", **more: Any) -> dict[str, Any]:
    return {"id": JOB_ID, "model": "square", "version": "1", "status": status, "links": LINKS, **more}


def problem(status: int, code: str, detail: str = "it did not work", **more: Any) -> Line:
    headers = more.pop("headers", {})
    return Line(status, {"type": "about:blank", "status": status, "code": code, "detail": detail, **more}, headers=headers)


@contextmanager
def playing(*script: Line, certificate: Path | None = None) -> Iterator[Gateway]:
    """`certificate`: of `localhost`, in a file with its key; the server then speaks TLS."""
    lines, seen = deque(script), list[Seen]()

    class Player(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            seen.append(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, content))
            line = lines.popleft() if lines else problem(500, "script_over")
            self.close_connection = True
            if not line.hang_up:
                self.play(line)

        def play(self, line: Line) -> None:
            content = line.content()
            self.send_response(line.status)
            headers = {"content-type": "application/json", "connection": "close", **line.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the names http.server looks for

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Player) as server:
        if certificate:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            origin = "https://localhost" if certificate else "http://127.0.0.1"
            yield Gateway(f"{origin}:{server.server_address[1]}", lines, seen)
        finally:
            server.shutdown()
            thread.join()
