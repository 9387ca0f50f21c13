"""Uploaded and produced files: who may see one, its JSON view, and its bytes as a response."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.responses import FileResponse
from starlette.types import Receive, Scope, Send

from penstock.broker.blobs.uploads import FilePage, FileRecord, FileStore
from penstock.errors import NotFound
from penstock.gateway.asgi.wire import HEAD_ONLY
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.lists import Lists


class WholeFile(FileResponse):
    """Ignores Range headers: a long list of ranges would make the server work for nothing."""

    @classmethod
    def of(cls, path: Path, filename: str, *, headers: Mapping[str, str]) -> WholeFile:
        return cls(path, media_type="application/octet-stream", filename=filename, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [item for item in scope["headers"] if item[0] not in (b"range", b"if-range")]
        # Routes see a HEAD as a GET, but a HEAD must not read the file.
        method = "HEAD" if scope.get(HEAD_ONLY) else scope["method"]
        await super().__call__({**scope, "method": method, "headers": headers}, receive, send)


async def visible_file(files: FileStore, file_id: str, caller: Caller) -> FileRecord:
    """The record if the file is the caller's; otherwise raises `NotFound`, as for a file that never existed."""
    record = await asyncio.to_thread(lambda: files.find(file_id, now=files.now()))
    if not caller.sees(record.owner):
        raise NotFound(f"there is no file {file_id[:80]!r}", hint="GET /v1/files lists yours.")
    return record


async def files_page(
    lists: Lists,
    files: FileStore,
    caller: Caller,
    *,
    purpose: str | None = None,
    after: str = "",
    limit: int,
    newest: bool = True,
) -> FilePage:
    """A page of the files that the caller may see, at most `MOST_SHOWN`. Raises `RateLimited` as `Lists.turn` does."""

    def look() -> FilePage:
        return files.page(caller.only_owner, purpose=purpose, after=after, limit=limit, newest=newest, now=files.now())

    async with lists.turn(caller):
        return await lists.read(look)


def file_view(record: FileRecord) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": record.id,
        "object": "file",
        "bytes": record.size_bytes,
        "created_at": int(record.created_at),
        "expires_at": None if record.expires_at is None else int(record.expires_at),
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "x_sha256": record.sha256 or None,
    }
    return {name: value for name, value in view.items() if value is not None}
