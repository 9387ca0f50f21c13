from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.gateway.asgi.connection import CONNECTION, ClientConnection
from penstock.gateway.asgi.content import ContentResponse, file_headers
from penstock.gateway.asgi.ranges import ContentPart
from penstock.gateway.asgi.wire import HEAD_ONLY
from penstock.outputs.media import stored_type


@pytest.mark.parametrize(
    ("content_type", "filename", "disposition"),
    [
        ("image/png", None, None),
        ("application/octet-stream", None, None),
        ("image/png", "out.png", 'inline; filename="out.png"'),
        ("video/mp4", "a b.mp4", 'inline; filename="a b.mp4"'),
        ("image/jpeg", "café.jpg", "inline; filename=\"caf_.jpg\"; filename*=UTF-8''caf%C3%A9.jpg"),
        ("application/zip", 'a"b.zip', "attachment; filename=\"a_b.zip\"; filename*=UTF-8''a%22b.zip"),
        ("text/html", None, "attachment"),
        ("text/html; charset=utf-8", "a.html", 'attachment; filename="a.html"'),
        ("TEXT/HTML", None, "attachment"),
        ("image/svg+xml", None, "attachment"),
        ("application/xhtml+xml", None, "attachment"),
        ("application/pdf", None, "attachment"),
    ],
)
def test_browsers_show_what_they_cannot_run_and_save_the_rest(
    content_type: str, filename: str | None, disposition: str | None
) -> None:
    headers = file_headers(stored_type(content_type, filename))
    assert headers["content-type"] == content_type
    assert headers.get("content-disposition") == disposition
    assert (headers["x-content-type-options"], headers["content-security-policy"]) == ("nosniff", "sandbox")


class Counted:
    """Content that counts the pieces that were read of it."""

    def __init__(self, pieces: int) -> None:
        self.size = pieces
        self.read = 0

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        for _ in range(start, end):
            self.read += 1
            yield b"x"


class Client:
    """Takes the messages of a response; a body only while `reads` is set."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.offered = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            self.offered.set()
            await self.reads.wait()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


async def nothing() -> dict[str, Any]:
    return {}


async def test_the_next_piece_is_read_when_the_client_has_taken_the_last() -> None:
    content, client = Counted(5), Client()
    response = asyncio.create_task(ContentResponse(content, ContentPart(206, 1, 5), {})({}, nothing, client.send))
    await client.offered.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert content.read == 1
    client.reads.set()
    await response
    assert (content.read, client.body) == (4, b"xxxx")
    assert (b"content-length", b"4") in client.messages[0]["headers"]
    assert not client.messages[-1].get("more_body")


async def test_nothing_is_read_for_a_client_that_has_gone_or_wants_the_head_only() -> None:
    gone = ClientConnection()
    gone.mark_lost()
    scopes: list[tuple[dict[str, Any], int]] = [({CONNECTION: gone}, 1), ({HEAD_ONLY: True}, 0)]
    for scope, most in scopes:
        content, client = Counted(5), Client()
        client.reads.set()
        await ContentResponse(content, ContentPart(200, 0, 5), {})(scope, nothing, client.send)
        assert content.read <= most
        assert client.body == b""
