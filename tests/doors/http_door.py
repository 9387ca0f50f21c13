"""What doors over HTTP have in common: a request, a reply, a connection that is hung up, OpenAPI."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import httpx2

from tests.doors.door import Call, Door, Refusal, Reply
from tests.doors.stack import Site

# How penstock's own routes refuse, and foreign ones where their protocol says nothing else.
PROBLEMS: Mapping[str, Refusal] = {
    "unauthorized": (401, "unauthorized"),
    "wrong_role": (403, "wrong_role"),
    "rate_limited": (429, "rate_limited"),
    "quota_spent": (429, "quota_spent"),
    "overloaded": (429, "overloaded"),
    "no_worker": (503, "no_worker"),
    "store_unavailable": (503, "store_unavailable"),
    "storage_full": (507, "storage_full"),
    "unknown_model": (404, "not_found"),
    "unknown_version": (404, "not_found"),
    "unreadable": (400, "bad_request"),
    "empty": (400, "bad_request"),
    "media": (415, "unsupported_media_type"),
    "misfit": (422, "invalid_input"),
    "too_large": (413, "too_large"),
    "key_reused": (422, "idempotency_key_reused"),
    "expired": (504, "expired"),
    "method": (405, "method_not_allowed"),
    "headers": (431, "headers_too_large"),
    "cross_site": (403, "cross_site"),
    # Codes of failed jobs.
    "failed:handler_error": (500, "handler_error"),
    "failed:my_own": (500, "my_own"),
    "failed:bad_image": (422, "bad_image"),
    "failed:invalid_input": (422, "invalid_input"),
    "failed:too_large": (413, "too_large"),
    "failed:input_url_failed": (422, "input_url_failed"),
    "failed:oom": (507, "oom"),
    "failed:timeout": (504, "timeout"),
    "failed:load_failed": (503, "load_failed"),
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    content: bytes
    headers: Mapping[str, str]
    params: Mapping[str, str] = field(default_factory=dict)


class HttpDoor(Door):
    """`body_of` is what a door sends for a call, `request_of` how."""

    refusals: ClassVar[Mapping[str, Refusal]] = PROBLEMS
    accept: ClassVar[str] = "application/json, application/problem+json"

    def path_of(self, call: Call) -> str:
        raise NotImplementedError

    def body_of(self, call: Call) -> Any:
        raise NotImplementedError

    def params_of(self, call: Call) -> dict[str, str]:
        return {}

    def more_headers(self, call: Call) -> dict[str, str]:
        return {}

    def number_in(self, body: Any) -> float | None:
        """The number in an output; None if there is none."""
        return body.get("n") if isinstance(body, dict) else None

    def request_of(self, site: Site, call: Call) -> HttpRequest:
        content = json.dumps(self.body_of(call), ensure_ascii=False).encode() if call.body is None else call.body
        media = call.media or "application/json"
        common = {"accept": self.accept, "content-type": media, **self.more_headers(call), **call.sent_headers(site)}
        return HttpRequest(call.method or "POST", self.path_of(call), content, common, self.params_of(call))

    def send(self, site: Site, call: Call) -> Reply:
        request = self.request_of(site, call)
        content = b"" if request.method in ("GET", "HEAD") else request.content
        answer = site.http.request(
            request.method,
            request.path,
            content=content,
            headers=dict(request.headers),
            params=dict(request.params),
            timeout=call.timeout_s + 15.0,
        )
        return self.read(answer)

    def read(self, answer: httpx2.Response) -> Reply:
        body, headers = self._json(answer), {name.lower(): value for name, value in answer.headers.items()}
        found = Reply(
            status=answer.status_code,
            job=headers.get("x-penstock-job", ""),
            headers=headers,
            size=len(answer.content),
            text=answer.text,
        )
        if answer.status_code >= 400:
            return replace(found, code=self.code_in(body))
        return replace(found, n=self.number_in(body))

    def code_in(self, body: Any) -> str:
        return str(body.get("code", "")) if isinstance(body, dict) else ""

    def _json(self, answer: httpx2.Response) -> Any:
        try:
            return answer.json()
        except ValueError:
            return None

    def check_refusal(self, reply: Reply) -> None:
        assert reply.headers["content-type"] == "application/problem+json"
        problem = json.loads(reply.text)
        assert {"type", "title", "status", "code", "detail", "instance", "request_id"} <= problem.keys()
        assert (problem["status"], problem["request_id"]) == (reply.status, reply.headers["x-request-id"])

    @contextmanager
    def held(self, site: Site, call: Call) -> Iterator[None]:
        """The request on a connection of its own, which is closed at the end of the block."""
        request = self.request_of(site, call)
        url = httpx2.URL(request.path, params=dict(request.params))
        lines = {"host": "localhost", "content-length": str(len(request.content)), **request.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with socket.create_connection(("127.0.0.1", site.http.base_url.port or 80), timeout=10.0) as connection:
            connection.sendall(f"{request.method} {url} HTTP/1.1\r\n{head}\r\n".encode() + request.content)
            yield

    def is_described(self, site: Site) -> bool:
        paths = site.kept.get("paths") or site.get("/openapi.json").json()["paths"]
        site.kept["paths"] = paths
        return self.route in paths


class LaterDoor(HttpDoor):
    """A door that answers before the end: the job is read over penstock's own routes."""

    def finish(self, site: Site, call: Call, reply: Reply) -> Reply:
        record = site.ended(reply.job)
        if record["status"] != "succeeded":
            return replace(reply, status=record["status"], code=record.get("error", {}).get("code", record["status"]))
        answer = site.get(f"/v1/jobs/{reply.job}/result")
        return replace(reply, status=200, n=self.number_in(answer.json()), size=len(answer.content))
