"""Which web pages of other origins may call the API from a browser: those that `gateway.cors_origins` names, by default none.

A page calls with an API key in `Authorization`, as every client does. Cookies are never allowed, so other origins cannot
use a session of the dashboard.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.gateway.asgi.problems import Headers
from penstock.gateway.asgi.wire import Scope, Send, answer

# Browsers cache a preflight's answer for this time.
_REMEMBERED_S = b"600"
_VARY = (b"vary", b"origin")
# The headers that a page may send beyond those that browsers always allow, and those that it may read.
_REQUEST_HEADERS = (
    b"authorization, content-type, idempotency-key, if-none-match, if-range, last-event-id, prefer, range, traceparent, "
    b"tracestate, x-request-id"
)
_ANSWER_HEADERS = (
    b"accept-ranges, content-disposition, content-range, etag, location, preference-applied, retry-after, server-timing, "
    b"traceparent, www-authenticate, x-handler-status, x-penstock-job, x-penstock-run, x-penstock-version, x-request-id, "
    b"x-should-retry"
)
_METHODS = b"GET, HEAD, POST, PUT, DELETE"


class CrossOrigin:
    """The answers to preflights of pages of other origins."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in origins)

    def allows(self, origin: bytes) -> bool:
        return origin in self._origins

    async def answer_preflight(self, scope: Scope, send: Send) -> bool:
        """Answer a preflight; False if this request is not one, or not allowed."""
        origin = _header(scope, b"origin")
        if scope["method"] != "OPTIONS" or not self.allows(origin) or not _header(scope, b"access-control-request-method"):
            return False
        headers = [
            *_allow(origin),
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _REQUEST_HEADERS),
            (b"access-control-max-age", _REMEMBERED_S),
        ]
        if _header(scope, b"access-control-request-private-network"):
            headers.append((b"access-control-allow-private-network", b"true"))
        await answer(send, 204, headers, b"")
        return True

    def opened(self, scope: Scope, send: Send) -> Send:
        """`send` with the headers that let an allowed page read the answer. A cache must key answers by origin."""
        origin = _header(scope, b"origin")
        extra = [*_allow(origin), (b"access-control-expose-headers", _ANSWER_HEADERS)] if self.allows(origin) else [_VARY]

        async def send_opened(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        return send_opened


def _allow(origin: bytes) -> Headers:
    return [(b"access-control-allow-origin", origin), _VARY]


def _header(scope: Scope, name: bytes) -> bytes:
    return next((value for known, value in scope["headers"] if known == name), b"")
