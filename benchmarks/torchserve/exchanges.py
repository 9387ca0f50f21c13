"""The requests that both servers get, and what is kept of an answer."""

from __future__ import annotations

import base64
import http.client
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

_ANSWER_S = 60.0
_BOUNDARY = "part-of-a-form"
# Headers that a caller may read. All others differ between any two servers.
HEADERS = ("content-type", "x-made-by", "allow")
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
BYTES = {"content-type": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form; a file if `filename` is given."""

    name: str
    data: bytes
    filename: str = ""
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request. `about` names the archive that it needs, or is empty; `port`: inference or management."""

    about: str
    name: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    port: str = "inference"

    @property
    def key(self) -> str:
        return f"{self.about or self.port}: {self.name}"


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """`body` is the text of the answer, without what differs from run to run; bytes that are no text are in base64."""

    status: int
    headers: dict[str, str]
    body: str


def send(exchange: Exchange, port: int) -> KeptAnswer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_S)
    try:
        connection.request(exchange.method, exchange.path, exchange.body or None, dict(exchange.headers))
        response = connection.getresponse()
        raw = response.read()
    finally:
        connection.close()
    headers = {name: value for name in HEADERS if (value := response.headers.get(name)) is not None}
    return KeptAnswer(response.status, headers, plain(raw))


def plain(raw: bytes) -> str:
    """The body as text, with what no two runs share replaced by a word."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(raw).decode()
    for pattern, word in _VOLATILE:
        text = pattern.sub(word, text)
    return text


_VOLATILE = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r'"pid": \d+', '"pid": 1'),
        (r'"memoryUsage": \d+', '"memoryUsage": 1'),
        (r'"startTime": "[^"]+"', '"startTime": "then"'),
        (r'"id": "\d{4,5}"', '"id": "9000"'),
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "an-id"),
    )
)


def parsed(body: str) -> Any:
    """The body as JSON if it is JSON, else the text."""
    try:
        return json.loads(body)
    except ValueError:
        return body


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def form(*fields: FormField) -> tuple[bytes, Mapping[str, str]]:
    """The body of a form and its header."""
    out = bytearray()
    for part in fields:
        named = f'; filename="{part.filename}"' if part.filename else ""
        out += f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{part.name}"{named}\r\n'.encode()
        out += (f"Content-Type: {part.media_type}\r\n" if part.media_type else "").encode() + b"\r\n" + part.data + b"\r\n"
    out += f"--{_BOUNDARY}--\r\n".encode()
    return bytes(out), {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}


@cache
def picture() -> bytes:
    """A PNG of 300 x 280 pixels, the same in each run."""
    from PIL import Image

    image = Image.new("RGB", (300, 280))
    image.putdata([(x * 255 // 300, y * 255 // 280, (x * y) % 256) for y in range(280) for x in range(300)])
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
