"""A file of the disk as an answer: in pieces, whole, and to be kept rather than shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send


class WholeFile(FileResponse):
    """All of it, whatever parts are asked for: lists of ranges are a way to make a server work for nothing."""

    @classmethod
    def of(cls, path: Path, filename: str, *, headers: Mapping[str, str]) -> WholeFile:
        return cls(path, media_type="application/octet-stream", filename=filename, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = [item for item in scope["headers"] if item[0] not in (b"range", b"if-range")]
        await super().__call__({**scope, "headers": asked}, receive, send)
