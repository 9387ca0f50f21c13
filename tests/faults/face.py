"""The system as its clients see it: submit, look. Each system under test has one face, so that one driver serves them all."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from tests.faults.ledger import View


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` 0 means that the connection broke, or that nobody listened; the outcome is then unknown."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def expected(self) -> bool:
        """Whether a client must be ready for this answer: 2xx, 429, 503 with Retry-After, or none at all."""
        refusal = self.status == 503 and "retry-after" in self.headers
        return self.status == 0 or 200 <= self.status < 300 or self.status == 429 or refusal


class Face(Protocol):
    def submit(self, key: str, order: dict[str, Any]) -> tuple[Answer, str]:
        """Return the answer, and the job's id if the job was accepted."""
        ...

    def look(self, job: str) -> tuple[Answer, View | None]:
        """Return the answer, and the view if there was one."""
        ...


class HttpFace:
    """penstock's jobs API over one connection per thread."""

    def __init__(self, port: int, *, model: str = "echo", query: str = "", timeout_s: float = 15.0) -> None:
        self._port = port
        self._path = f"/v1/models/{model}/jobs{query}"
        self._timeout_s = timeout_s
        self._local = threading.local()
        # This list keeps the connections beyond their threads, so that one place can close them all.
        self._made: list[http.client.HTTPConnection] = []

    def submit(self, key: str, order: dict[str, Any]) -> tuple[Answer, str]:
        headers = {"content-type": "application/json", "idempotency-key": key}
        answer = self.ask("POST", self._path, json.dumps(order).encode(), headers)
        return answer, answer.json()["id"] if answer.status == 202 else ""

    def look(self, job: str) -> tuple[Answer, View | None]:
        answer = self.ask("GET", f"/v1/jobs/{job}")
        if answer.status != 200:
            return answer, None
        body = answer.json()
        if body["status"] != "succeeded":
            return answer, _view(body, "")
        output = self.ask("GET", f"/v1/jobs/{job}/result")
        return output, _view(body, output.json()["digest"]) if output.status == 200 else None

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        """Send one request. If a kept connection turns out to be dead, a GET is sent once more, as any client does."""
        for _ in range(2 if method == "GET" else 1):
            try:
                return self._ask(method, path, body, headers or {})
            except (OSError, http.client.HTTPException):
                self.close()
        return Answer(0)

    def close(self) -> None:
        """Drop this thread's connection."""
        connection = self._local.__dict__.pop("connection", None)
        if connection is not None:
            connection.close()

    def close_all(self) -> None:
        """Drop every thread's connection; no thread may send a request any more."""
        for connection in self._made:
            connection.close()

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = self._local.__dict__.get("connection")
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._timeout_s)
            self._made.append(connection)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(), {name.lower(): value for name, value in response.getheaders()})


def _view(body: dict[str, Any], digest: str) -> View:
    status = body["status"]
    final = status not in ("queued", "running")
    error = (body.get("error") or {}).get("code", "")
    finished = body.get("finished_at")
    return View(status, final, digest, error, datetime.fromisoformat(finished).timestamp() if finished else 0.0)
