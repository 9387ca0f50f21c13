"""The end of a job for its reader: the output, wherever it is kept, or why there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import Push
from penstock.broker.store.aio import AsyncStore
from penstock.errors import Gone, NotFound
from penstock.gateway.asgi.content import ContentResponse, file_headers, part_headers
from penstock.gateway.asgi.problems import EndedWithoutOutput, NoResult
from penstock.gateway.asgi.ranges import Conditions, ContentPart, wanted_part
from penstock.gateway.auth.keys import Caller
from penstock.job import Job, JobId, JobState, Payload

T = TypeVar("T")
_RETRYABLE = frozenset({"worker_lost", "load_failed"})


async def visible_job(store: AsyncStore, job: JobId, caller: Caller) -> Job:
    """The record if the caller may see it; otherwise raises the error of a job that never existed."""
    found = await store.read(job)
    if found is None or not caller.sees(found.owner):
        raise await missing_job(store, job, caller)
    return found


async def missing_job(store: AsyncStore, job: JobId, caller: Caller) -> Gone | NotFound:
    """The error for a job that the caller cannot see: `Gone` only for the caller's own, so that others' jobs stay unknown."""
    owner = await store.collected_owner(job)
    if owner is not None and caller.sees(owner):
        return Gone(f"job {job} existed; its retention is over", hint="Raise result_ttl_s to keep results longer.")
    return NotFound(f"there is no job {job}")


def first_is_gone(job: JobId) -> Gone:
    """The error for a repeated request whose idempotency key outlived its job."""
    return Gone(f"job {job} of this Idempotency-Key is gone: its retention is over", hint="Use a new key for a new job.")


class ResultReader:
    """Reads outputs from the push, the store or the blobs, wherever they are."""

    def __init__(self, store: AsyncStore, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs

    async def output(self, end: Push) -> Payload:
        """The output with all its bytes; raises `EndedWithoutOutput` if the job did not succeed."""
        payload = await self._payload(end, EndedWithoutOutput)
        return Payload(payload.content_type, await self._read(end.id, payload, self._blobs.get)) if payload.blob else payload

    async def answer(
        self,
        end: Push,
        *,
        conditions: Conditions | None = None,
        refusal: type[EndedWithoutOutput] = NoResult,
    ) -> ContentResponse:
        """The output as a response; to a GET with `conditions`, the part that they ask for.

        Raises `refusal` if the job did not succeed, `RangeNotSatisfiable` for a part behind the end.
        """
        payload = await self._payload(end, refusal)
        content = await self._read(end.id, payload, self._blobs.open) if payload.blob else payload.data
        size = len(content) if isinstance(content, bytes) else content.size
        # A result never changes (I2), so the job's id names its bytes.
        tag = f'"{end.id}"'
        part = wanted_part(size, tag, conditions) if conditions is not None else ContentPart(200, 0, size)
        headers = file_headers(payload.content_type) | (part_headers(part, size, tag) if conditions is not None else {})
        return ContentResponse(content, part, headers)

    async def _payload(self, end: Push, refusal: type[EndedWithoutOutput]) -> Payload:
        """The output as it is stored: its bytes, or the name of its blob."""
        if end.state is not JobState.SUCCEEDED:
            raise ended_without_output(end, refusal)
        return end.output if end.output is not None else await self._stored(end.id)

    async def _stored(self, job: JobId) -> Payload:
        found = await self._store.result(job)
        if found is None or found[1] is None:
            raise Gone(f"the result of job {job} is gone: its retention is over")
        return found[1]

    async def _read(self, job: JobId, payload: Payload, read: Callable[[str], T]) -> T:
        try:
            return await asyncio.to_thread(read, payload.blob)
        except Gone:
            raise Gone(
                f"the stored output of job {job} is gone",
                hint="Gateways and workers must share one blob folder (store.blob_dir) or object store (store.blob_url).",
            ) from None


def ended_without_output(end: Push, refusal: type[EndedWithoutOutput] = EndedWithoutOutput) -> EndedWithoutOutput:
    """The error for the reader of a job that ended without an output."""
    code = end.error_code or {JobState.CANCELLED: "cancelled", JobState.EXPIRED: "expired"}.get(end.state, "failed")
    message = end.error_message or {
        JobState.CANCELLED: "The job was cancelled.",
        JobState.EXPIRED: "The job's deadline passed before it finished.",
    }.get(end.state, "The job failed.")
    return refusal(message, job=end.id, state=end.state, code=code, retryable=code in _RETRYABLE)
