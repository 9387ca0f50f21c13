"""The end of a job for its reader: the output, or why there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.blobs.readers import BlobReader, BytesReader
from penstock.broker.records import Push
from penstock.errors import Gone, NotFound
from penstock.gateway.asgi.bundles import bundle_content, bundled_content
from penstock.gateway.asgi.content import Content, ContentResponse, file_headers, response_to
from penstock.gateway.asgi.problems import EndedWithoutOutput, NoResult
from penstock.job import TENSORS_MEDIA, Job, JobId, JobState, Payload
from penstock.outputs.bundle import BUNDLE_MEDIA
from penstock.outputs.response_head import split_head

if TYPE_CHECKING:
    from penstock.broker.blobs.files import BlobStore
    from penstock.broker.store.aio import AsyncStore
    from penstock.gateway.asgi.ranges import Conditions
    from penstock.gateway.auth.keys import Caller

T = TypeVar("T")
_RETRYABLE = frozenset({"worker_lost", "load_failed"})


async def visible_job(store: AsyncStore, job: JobId, caller: Caller) -> Job:
    """The record if the caller may see it; otherwise raises the same error as for a job that never existed."""
    record = await store.read(job)
    if record is None or not caller.sees(record.owner):
        raise await missing_job(store, job, caller)
    return record


async def missing_job(store: AsyncStore, job: JobId, caller: Caller) -> Gone | NotFound:
    """The error for a job that the caller cannot see: `Gone` only for the caller's own jobs, to not disclose others'."""
    owner = await store.collected_owner(job)
    if owner is not None and caller.sees(owner):
        hint = "Raise result_ttl_s to keep results longer; for answer-now requests sync_result_ttl_s."
        return Gone(f"job {job} existed; its retention is over", hint=hint)
    return NotFound(f"there is no job {job}")


def first_is_gone(job: JobId) -> Gone:
    """The error for a repeated request whose idempotency key outlived its job."""
    return Gone(f"job {job} of this Idempotency-Key is gone: its retention is over", hint="Use a new key for a new job.")


def ended(job: Job) -> Push:
    """The end of a job that has ended; its output is not read yet."""
    end = Push.of_end(job, None)
    assert end is not None
    return end


class ResultReader:
    """Reads outputs from the push, the store or the blobs."""

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
        accept: str = "",
        conditions: Conditions | None = None,
        refusal: type[EndedWithoutOutput] = NoResult,
    ) -> ContentResponse:
        """The output as a response. `conditions` of a GET may select a part.

        A bundle is sent as JSON with links, or as a form if the client accepts one. Raises `refusal` if the job did not
        succeed, `RangeNotSatisfiable` for a part beyond the end.
        """
        return response_to(await self.content(end, accept=accept, refusal=refusal), conditions)

    async def content(self, end: Push, *, accept: str = "", refusal: type[EndedWithoutOutput] = NoResult) -> Content:
        """The output as `answer` sends it. Raises as `answer` does."""
        media, reader = await self.opened(end, refusal)
        if media == TENSORS_MEDIA:
            # Imported here: few outputs of our own routes are tensors.
            from penstock.gateway.jobs.tensors import tensors_content

            data = b"".join(await asyncio.to_thread(lambda: list(reader.pieces(0, reader.size))))
            return await tensors_content(data, end.id, accept)
        if media == BUNDLE_MEDIA:
            return await bundle_content(reader, end.id, accept)
        # A result never changes (I2), so the job's id identifies its bytes.
        return Content(reader, file_headers(media), str(end.id), split_head(media)[1])

    async def file(self, end: Push, place: int, conditions: Conditions) -> ContentResponse:
        """One file of a bundle. Raises `NotFound` if the output has no such file, and as `answer` does."""
        media, reader = await self.opened(end, NoResult)
        if media != BUNDLE_MEDIA:
            raise NotFound(f"the output of job {end.id} is not a bundle of files", hint=f"GET /v1/jobs/{end.id}/result")
        return response_to(await bundled_content(reader, end.id, place), conditions)

    async def opened(self, end: Push, refusal: type[EndedWithoutOutput] = EndedWithoutOutput) -> tuple[str, BlobReader]:
        """The media type of the output as it is stored, and its bytes. Raises as `answer` does."""
        payload = await self._payload(end, refusal)
        reader = await self._read(end.id, payload, self._blobs.open) if payload.blob else BytesReader(payload.data)
        return payload.content_type, reader

    async def _payload(self, end: Push, refusal: type[EndedWithoutOutput]) -> Payload:
        """The output as it is stored: its bytes, or the name of its blob."""
        if end.state is not JobState.SUCCEEDED:
            raise ended_without_output(end, refusal)
        return end.output if end.output is not None else await self._stored(end.id)

    async def _stored(self, job: JobId) -> Payload:
        result = await self._store.result(job)
        if result is None or result[1] is None:
            raise Gone(f"the result of job {job} is gone: its retention is over")
        return result[1]

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
