"""Copies of requests for a split's shadow: submitted in bulk behind the request, compared with it, never answered.

The number of copies under way, their size and the length of the queue are bounded. Copies beyond a bound are dropped and
counted. A copy that outlives its gateway is not compared; its job ends as any other.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from msgspec import structs

from penstock.broker.blobs.files import BlobStore
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.notifications import Waiter
from penstock.errors import CallerError, Gone, PenstockError
from penstock.extensions.splits.comparison import JobEnd, Match, compared
from penstock.extensions.splits.gateway.entry import split_in
from penstock.extensions.splits.split import Split
from penstock.extensions.splits.store import count_split
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions
from penstock.job import Call, JobId, JobState, Payload, Priority
from penstock.logs import job_fields

if TYPE_CHECKING:
    from penstock.gateway.jobs.submitting.draft import SubmitRequest
    from penstock.gateway.jobs.submitting.submitter import Submitter

log = structlog.get_logger(__name__)

SHADOW_TAG = "shadow"
# Bounds of one gateway process: its copies hold at most 64 MiB of inputs and 64 MiB of outputs.
MOST_COPIES = 64
MOST_BYTES = 1 << 20
# Copies wait behind all other work. One that no worker has run by then is not worth a longer wait.
WITHIN_S = 600.0
KEPT_S = 3_600.0
# No copies for a queue that is this full.
_FULLEST = 0.1
_FLUSH_S = 0.5
DROPPED, REFUSED = "shadow,dropped", "shadow,refused"


class Shadows:
    """Makes the copies of one gateway process, and counts how they compare under the name of the split."""

    def __init__(self, submitter: Submitter, store: AsyncStore, blobs: BlobStore) -> None:
        self._submitter = submitter
        self._store = store
        self._blobs = blobs
        self._copies: set[asyncio.Task[None]] = set()
        self._counts: dict[tuple[str, str], Counter[str]] = {}
        self._flush: asyncio.Task[None] | None = None

    def copy(self, request: SubmitRequest, job: JobId) -> None:
        """Begin a copy of a request that was stored as `job`; returns at once."""
        if self._is_too_much(request):
            self._count(request, DROPPED)
            return
        # The request loses its input once it is stored, so the copy is made of it now.
        task = asyncio.create_task(self._copy(request, copied(request), job))
        self._copies.add(task)
        task.add_done_callback(self._copies.discard)

    def _is_too_much(self, request: SubmitRequest) -> bool:
        """Whether a copy would hold or wait too much; no request with a start to come, and no explanation, is copied either."""
        waiting, most = request.model.backlog.depth, request.model.info.limits.max_queue_depth * _FULLEST
        is_other = bool(request.options.delay_s) or request.call is not Call.PREDICT
        return is_other or len(self._copies) >= MOST_COPIES or len(request.input.data) > MOST_BYTES or waiting > most

    async def _copy(self, request: SubmitRequest, wanted: SubmitRequest, job: JobId) -> None:
        copy = request.model.backlog.new_job_id(request.model.info, owner="", key="")
        try:
            await self._submitter.inputs.stored(wanted.input, wanted.version)
            with self._store.waiter(job, copy) as waiter:
                channel = self._store.channel
                await self._submitter.store(wanted, copy, deadline_s=WITHIN_S, result_ttl_s=KEPT_S, reply_to=channel)
                match = await self._match(waiter, job, copy, _tolerance(request))
        except CallerError:
            self._count(request, REFUSED)
        except PenstockError as error:
            log.debug("shadow_dropped", **job_fields(job, version=wanted.version.name), reason=error.message)
            self._count(request, DROPPED)
        else:
            self._count(request, f"shadow,{match}")
            if match in (Match.DIFFERENT, Match.STATUS):
                fields = job_fields(job, version=request.version.name)
                log.info("shadow_differs", **fields, copy=str(copy), match=match.value)

    async def _match(self, waiter: Waiter, job: JobId, copy: JobId, tolerance: float) -> Match:
        """How the ends compare. `LOST` if one of them cannot be read, or the original was cancelled."""
        try:
            async with asyncio.timeout(WITHIN_S):
                one, other = await self._ends(waiter, job, copy)
            if one is None or other is None or one.state is JobState.CANCELLED:
                await self._store.cancel(copy)
                return Match.LOST
            # No operator has to repair a failed copy, so it leaves the inbox.
            await self._store.dismiss([copy])
        except (TimeoutError, PenstockError):
            return Match.LOST
        return await asyncio.to_thread(compared, one, other, tolerance=tolerance)

    async def _ends(self, waiter: Waiter, job: JobId, copy: JobId) -> tuple[JobEnd | None, JobEnd | None]:
        """The end of the original and that of the copy. Each is read when it comes: some are kept for a minute only."""
        known = await self._store.watch(job)
        if known is None:
            return None, None
        ends = {job: await self._end(job)} if known.state.final else {}
        while len(ends) < 2:
            push = await waiter.next_end(WITHIN_S, stop=lambda: False)
            if push is not None and push.id not in ends:
                ends[push.id] = await self._end(push.id)
        return ends[job], ends[copy]

    async def _end(self, job: JobId) -> JobEnd | None:
        ended = await self._store.result(job)
        if ended is None:
            return None
        record, output = ended
        if record.state is not JobState.SUCCEEDED or output is None:
            return JobEnd(record.state, record.error.code if record.error else "")
        try:
            return JobEnd(record.state, "", output.content_type, await asyncio.to_thread(self._bytes, output))
        except Gone:
            return None

    def _bytes(self, output: Payload) -> bytes:
        """The output, or a digest of a large one, which is compared for equality only."""
        data = self._blobs.get(output.blob) if output.blob else output.data
        return data if len(data) <= MOST_BYTES else hashlib.sha256(data).digest()

    def _count(self, request: SubmitRequest, what: str) -> None:
        """Counts are sent together, so that many drops at one moment cost one call."""
        self._counts.setdefault((request.model.name, _split(request).id), Counter())[what] += 1
        if self._flush is None or self._flush.done():
            self._flush = asyncio.create_task(self._send_counts())

    async def _send_counts(self) -> None:
        while self._counts:
            await asyncio.sleep(_FLUSH_S)
            counts, self._counts = self._counts, {}
            for (model, split), of_split in counts.items():
                try:
                    await self._store.run(count_split(model, split, of_split))
                except PenstockError as error:
                    log.warning("shadow_uncounted", model=model, reason=error.message, **_words(of_split))


def copied(request: SubmitRequest) -> SubmitRequest:
    """The request as its copy is stored: in bulk, without an owner and so outside all quotas, with a tag to find it by."""
    split = split_in(request.model)
    assert split is not None
    assert split.shadow is not None
    options = SubmitOptions(priority=Priority.BULK, tags=(SHADOW_TAG,))
    return structs.replace(
        request,
        model=replace(request.model, chooser=None),
        version=split.shadow,
        options=options,
        caller=Caller(),
        key="",
        fingerprint="",
        trace=None,
        sending=None,
        replay_of=None,
        words={},
        scope=None,
    )


def _split(request: SubmitRequest) -> Split:
    own = split_in(request.model)
    assert own is not None
    return own.split


def _tolerance(request: SubmitRequest) -> float:
    shadow = _split(request).shadow
    return shadow.tolerance if shadow is not None else 0.0


def _words(counts: Counter[str]) -> dict[str, int]:
    return {what.partition(",")[2]: count for what, count in counts.items()}
