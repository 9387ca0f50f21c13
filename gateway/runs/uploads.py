"""Uploads of files: read in a stream under the limits of their owner, and deleted once they have expired."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

import orjson
import structlog
from starlette.requests import Request

from penstock.broker.blobs.uploads import FileRecord, FileStore, NewFile, Upload
from penstock.errors import BadParameter, StoreUnavailable, TooLarge
from penstock.gateway.asgi.multipart import UploadForm
from penstock.gateway.asgi.negotiation import read_head
from penstock.gateway.asgi.wire import declared_length
from penstock.gateway.auth.keys import Caller, Shares
from penstock.gateway.runs.file_quota import FileQuota, UploadAllowance
from penstock.settings.tables import RunsSettings

log = structlog.get_logger(__name__)

# An upload is written to disk in pieces of this size, and needs the memory of one piece.
PIECE_BYTES = 256 * 1024
MAX_UPLOADS = 32
# The size that a form may have besides its file: boundaries, headers and small fields.
FORM_BYTES = 128 * 1024
SWEEP_S = 600.0
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
SHORTEST_S, LONGEST_S = 3600.0, 2_592_000.0


class FileUploads:
    """The uploads of one gateway process, and the task that deletes expired files."""

    def __init__(self, files: FileStore, table: RunsSettings, quota: FileQuota) -> None:
        self._files = files
        self._quota = quota
        self._table = table
        self._uploads = Shares("uploads of files", MAX_UPLOADS)
        self._sweeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start deleting expired files at regular intervals."""
        self._sweeping = asyncio.create_task(self._keep_sweeping())

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def upload(self, request: Request, caller: Caller, form: UploadForm, *, purpose: str = "") -> FileRecord:
        """Store the body's file; without a `purpose` the form must name one."""
        self._uploads.take(caller)
        try:
            async with self._quota.upload(caller.owner, self._declared(request)) as allowance:
                return await self._store(request, form, caller, allowance, purpose=purpose)
        finally:
            self._uploads.give_back(caller)

    async def remove(self, record: FileRecord) -> None:
        await asyncio.to_thread(self._files.delete, record.id)
        self._quota.note_deleted(record)

    def _declared(self, request: Request) -> int | None:
        """The length that the request declares; raises `TooLarge` if it is beyond the limit."""
        declared = declared_length(read_head(request.headers.raw))
        limit = self._table.max_file_bytes
        if declared is not None and declared > limit + FORM_BYTES:
            raise TooLarge(
                f"the form has {declared} bytes; the most that this gateway keeps of a file is {limit}",
                hint="Split the file, or raise runs.max_file_bytes.",
            )
        return declared

    async def _store(
        self, request: Request, form: UploadForm, caller: Caller, allowance: UploadAllowance, *, purpose: str
    ) -> FileRecord:
        new = NewFile(owner=caller.owner, filename="", purpose="")
        limit, now = self._table.max_file_bytes, await asyncio.to_thread(self._files.now)
        upload = await asyncio.to_thread(self._files.upload, new, max_bytes=limit, now=now)
        try:
            await _read(request, form, upload, allowance)
            purpose, ttl_s = purpose or _purpose(form), self._ttl_s(form)
            finish = partial(upload.finish, purpose=purpose, filename=form.filename, ttl_s=ttl_s, metadata=_metadata(form))
            record = await asyncio.to_thread(finish)
            self._quota.note_stored(record)
            return record
        except BaseException:
            # For any error, even a lost client: no partial file may stay on the disk.
            upload.drop()
            raise

    def _ttl_s(self, form: UploadForm) -> float:
        anchor, seconds = form.field(ANCHOR), form.field(SECONDS)
        if anchor is None and seconds is None:
            return self._table.file_ttl_s
        if anchor != "created_at" or seconds is None or not seconds.isdigit():
            raise BadParameter("expires_after takes the anchor created_at and a number of seconds", param="expires_after")
        if not SHORTEST_S <= int(seconds[:12]) <= LONGEST_S:
            raise BadParameter(f"expires_after.seconds must be from {SHORTEST_S:.0f} to {LONGEST_S:.0f}", param="expires_after")
        return float(seconds)

    async def _keep_sweeping(self) -> None:
        while True:
            try:
                deleted = await asyncio.to_thread(lambda: self._files.sweep(now=self._files.now()))
                if deleted:
                    log.info("files_expired", count=deleted)
            except (StoreUnavailable, OSError) as fault:
                log.warning("files_not_swept", reason=str(fault))
            await asyncio.sleep(SWEEP_S)


async def _read(request: Request, form: UploadForm, upload: Upload, allowance: UploadAllowance) -> None:
    """Write the whole body. Each piece is written before the next is read, so that a slow disk slows the client down."""
    piece = b""
    async with contextlib.aclosing(request.stream()) as chunks:
        async for chunk in chunks:
            piece += form.write(chunk)
            if len(piece) >= PIECE_BYTES:
                await asyncio.to_thread(_write, upload, allowance, piece)
                piece = b""
    form.finish()
    await asyncio.to_thread(_write, upload, allowance, piece)


def _write(upload: Upload, allowance: UploadAllowance, piece: bytes) -> None:
    allowance.write(piece)
    upload.write(piece)


def _metadata(form: UploadForm) -> dict[str, Any]:
    """The caller's metadata for a file; mostly empty."""
    try:
        metadata = orjson.loads(form.field("metadata") or "{}")
    except orjson.JSONDecodeError:
        metadata = None
    if not isinstance(metadata, dict):
        raise BadParameter("metadata must be a JSON object", param="metadata")
    return metadata


def _purpose(form: UploadForm) -> str:
    purpose = form.field("purpose") or ""
    if not purpose.replace("_", "").replace("-", "").isalnum() or len(purpose) > 64:
        raise BadParameter("the form has no valid purpose; the input of a batch has the purpose `batch`", param="purpose")
    return purpose
