"""HTTP clients that cost little, so that a test can hold thousands of connections: each is one socket and one coroutine."""

from __future__ import annotations

import asyncio
import resource
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class Connection:
    """One connection, kept open between requests until the server ends it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it was open before."""
        return self._reader is not None

    async def ask(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
        """The answer; raises `ConnectionError` or `asyncio.IncompleteReadError` if the server breaks it off."""
        return await self.whole(await self.head_of(method, path, headers, body))

    async def whole(self, head: Answer) -> Answer:
        """The answer of which `head_of` returned the head, with its body."""
        assert self._reader is not None
        if head.headers.get("transfer-encoding") == "chunked":
            content = await self._chunks(self._reader)
        else:
            content = await self._reader.readexactly(int(head.headers.get("content-length", 0)))
        if head.headers.get("connection") == "close":
            await self.close()
        return Answer(head.status, head.headers, content)

    async def head_of(self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
        """The head of the answer; its body stays unread."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        given = {"host": "localhost", "content-length": str(len(body)), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = dict(line.split(": ", 1) for line in head[1:] if line)
        return Answer(int(head[0].split()[1]), fields)

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        content = b""
        while size := int(await reader.readline(), 16):
            content += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        return content

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def allow_connections(count: int) -> None:
    """Raise this process's soft limit of open files as far as is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        assert hard > count + 200, f"this test holds {count} connections, and the hard limit of open files is {hard}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 1_000)), hard))
