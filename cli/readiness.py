"""Whether a gateway is ready, asked over HTTP with the standard library: `penstock up` needs no HTTP client for one GET."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Readiness:
    """`why` says what is still missing, as far as the gateway tells."""

    ready: bool
    why: str = ""


def readiness(url: str, *, timeout_s: float = 2.0) -> Readiness:
    """One GET of /readyz. A gateway that does not listen yet is not ready; nothing is raised."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return Readiness(answer.status == 200, reason_of(answer.read()))
    except (OSError, HTTPException):
        return Readiness(False, "the gateway does not listen yet")
    finally:
        connection.close()


def reason_of(content: bytes) -> str:
    """The sentence in a readiness body, or "" when there is none."""
    try:
        body = json.loads(content)
    except ValueError:
        return ""
    if not isinstance(body, dict):
        return ""
    lacking = body.get("errors")
    parts = (
        [": ".join(map(str, part.values())) for part in lacking if isinstance(part, dict)] if isinstance(lacking, list) else []
    )
    return "; ".join(parts) or str(body.get("detail") or "")
