"""The quota of one owner's files: checked before an upload is read, by its declared length, and while it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from penstock.broker.blobs.space import DiskReserve, FileCensus, FileUsage
from penstock.broker.blobs.uploads import FileRecord
from penstock.errors import QuotaSpent
from penstock.gateway.auth.lists import Lists

MOST_FILES = 10_000
_RETRY_AFTER_S = 60.0
_HINT = "DELETE /v1/files/{id} makes room; GET /v1/files lists yours."


class UploadAllowance:
    """An upload under way: the bytes that it has declared or sent, the larger of the two."""

    def __init__(self, quota: FileQuota, owner: str, used: FileUsage) -> None:
        self._quota = quota
        self._used = used
        self._written = 0
        self.owner = owner
        self.size_bytes = 0

    def extend(self, size_bytes: int) -> None:
        """Raises `QuotaSpent` or `StorageFull` if `size_bytes` for the whole upload are too many."""
        more = size_bytes - self.size_bytes
        if more > 0:
            self.size_bytes = size_bytes
            self._quota.check(self.owner, self._used, more)

    def write(self, piece: bytes) -> None:
        """Count a piece before it is written. Blocks for a moment."""
        self._written += len(piece)
        self.extend(self._written)


class FileQuota:
    """The limits of each owner, and the uploads of this process that are under way."""

    def __init__(
        self, census: FileCensus, reserve: DiskReserve, lists: Lists, *, max_bytes: int, max_files: int = MOST_FILES
    ) -> None:
        self._census = census
        self._lists = lists
        self._reserve = reserve
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._open: set[UploadAllowance] = set()

    @asynccontextmanager
    async def upload(self, owner: str, declared: int | None) -> AsyncIterator[UploadAllowance]:
        """Holds room for one upload until the block ends. Raises before the body is read."""
        allowance = UploadAllowance(self, owner, await self._usage(owner))
        self._open.add(allowance)
        try:
            allowance.extend(max(1, declared or 0))
            yield allowance
        finally:
            self._open.discard(allowance)

    async def require_room(self, owner: str) -> None:
        """Raises `QuotaSpent` or `StorageFull` if the owner may not have another file, such as a run's output."""
        self.check(owner, await self._usage(owner), 0, new=1)

    async def _usage(self, owner: str) -> FileUsage:
        # A count reads all records of the owner, as a list does.
        return await self._lists.read(partial(self._census.usage, owner))

    def check(self, owner: str, used: FileUsage, more: int, *, new: int = 0) -> None:
        under_way = [upload for upload in self._open if upload.owner == owner]
        if used.files + len(under_way) + new > self._max_files:
            raise _spent(f"this owner has {used.files} files, and may have {self._max_files}", raised="")
        taken = used.size_bytes + sum(upload.size_bytes for upload in under_way)
        if taken > self._max_bytes:
            raise _spent(
                f"the files of this owner have {used.size_bytes} bytes; with this one they would have {taken}, and may have "
                f"{self._max_bytes}",
                raised=" The operator may raise runs.max_owner_bytes.",
            )
        self._reserve.require(more)

    def note_stored(self, record: FileRecord) -> None:
        self._census.add(record.id, record.owner, record.size_bytes)

    def note_deleted(self, record: FileRecord) -> None:
        self._census.discard(record.id, record.owner)


def _spent(message: str, *, raised: str) -> QuotaSpent:
    return QuotaSpent(message, retry_after_s=_RETRY_AFTER_S, hint=_HINT + raised)
