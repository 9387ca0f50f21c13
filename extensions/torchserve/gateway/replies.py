"""The replies of TorchServe's routes: the headers of each, its pretty-printed JSON, its error object."""

from __future__ import annotations

import uuid
from typing import Any

import orjson
from starlette.responses import Response

from penstock.errors import CapacityError
from penstock.extensions.torchserve.gateway.errors import torchserve_error
from penstock.gateway.asgi.problems import request_id_of, retry_after

# As TorchServe sends them, the unusual semicolon included.
FIXED_HEADERS = (
    (b"pragma", b"no-cache"),
    (b"cache-control", b"no-cache; no-store, must-revalidate, private"),
    (b"expires", b"Thu, 01 Jan 1970 00:00:00 UTC"),
)
JSON_HEADER = (b"content-type", b"application/json")


def reply_headers(sent_id: bytes | None) -> list[tuple[bytes, bytes]]:
    """The headers of every reply. `sent_id`: the caller's own x-request-id, which is used if it is well-formed."""
    request_id = request_id_of(sent_id) if sent_id else str(uuid.uuid4())
    return [(b"x-request-id", request_id.encode("ascii")), *FIXED_HEADERS]


def pretty(value: Any) -> bytes:
    """JSON as TorchServe's control routes write it: indented by two, with a line break at its end."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def control_reply(value: Any, *, status: int = 200, sent_id: bytes | None = None) -> Response:
    return _reply(pretty(value), status, [*reply_headers(sent_id), JSON_HEADER])


def plain_reply(body: bytes, *, status: int = 200, sent_id: bytes | None = None) -> Response:
    """Without a media type, as TorchServe leaves it off."""
    return _reply(body, status, reply_headers(sent_id))


def error_reply(error: Exception, *, sent_id: bytes | None = None) -> Response:
    worded = torchserve_error(error)
    headers = [*reply_headers(sent_id), JSON_HEADER]
    if isinstance(error, CapacityError):
        headers.append((b"retry-after", b"%d" % retry_after(error.retry_after_s, draw=0.5)))
    if worded.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="penstock"'))
    return _reply(pretty(worded.body), worded.status, headers)


def _reply(body: bytes, status: int, headers: list[tuple[bytes, bytes]]) -> Response:
    response = Response(body, status_code=status)
    response.raw_headers = [*headers, (b"content-length", b"%d" % len(body))]
    return response
