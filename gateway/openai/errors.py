"""Refusals on the routes of OpenAI's protocol: the problem, with the `error` object that its clients read beside it. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from penstock.gateway.asgi.problems import ProblemResponse

_FAMILIES = ("/v1/files", "/v1/batches", "/v1/embeddings")
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_LASTING = frozenset({409, 500, 501, 507})
_NO_RETRY = (b"x-should-retry", b"false")


def speaks_openai(path: str) -> bool:
    return any(path == family or path.startswith(family + "/") for family in _FAMILIES)


def as_openai(problem: ProblemResponse, error: Exception) -> ProblemResponse:
    """The same refusal with the members that OpenAI's clients read, in the media type that they expect.

    What cannot heal says so: those clients send a 409 and every 5xx again otherwise.
    """
    told: dict[str, Any] = orjson.loads(problem.body)
    hint = told.get("hint")
    error_body = {
        "message": told["detail"] if hint is None else f"{told['detail'].rstrip('.')}. {hint}",
        "type": _type(problem.status),
        "param": getattr(error, "param", None) or None,
        "code": told["code"],
    }
    body = orjson.dumps({"error": error_body, **told})
    changed = {b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
    headers = [(name, changed.get(name, value)) for name, value in problem.headers]
    if problem.status in _LASTING and _NO_RETRY not in headers:
        headers.append(_NO_RETRY)
    return replace(problem, body=body, headers=headers)


def _type(status: int) -> str:
    return "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
