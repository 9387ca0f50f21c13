"""POST /v1/models/{model}[/versions/{version}]/jobs: store a job, answer with it or, on request, with its output."""

from __future__ import annotations

import random
import time

from penstock.broker.records import Push, SubmitStatus, Submitted
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.asgi import negotiation, wire
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.asgi.negotiation import Head
from penstock.gateway.asgi.problems import Headers, retry_after
from penstock.gateway.asgi.wire import Receive, Scope, Send
from penstock.gateway.auth.roles import WaitingResponses
from penstock.gateway.jobs.results import ResultReader, first_is_gone
from penstock.gateway.jobs.submitting.submitter import SubmitRequest, Submitter, job_deadline
from penstock.gateway.jobs.views import accepted_body, job_body
from penstock.gateway.models.admission import eta_s
from penstock.job import JobId, new_job_id


class SubmitEndpoint:
    """POST /v1/models/{model}[/versions/{version}]/jobs."""

    def __init__(
        self,
        submitter: Submitter,
        *,
        store: AsyncStore,
        results: ResultReader,
        lifetime: Lifetime,
        waiting: WaitingResponses,
    ) -> None:
        self._waiting = waiting
        self._submitter = submitter
        self._store = store
        self._results = results
        self._lifetime = lifetime

    async def __call__(self, scope: Scope, receive: Receive, send: Send, head: Head, model: str, version: str) -> int:
        """Returns the status code that was sent."""
        request = await self._submitter.read(scope, receive, head, route="jobs", model=model, version=version)
        preference = negotiation.parse_preference(head.get(b"prefer"))
        extra: Headers = [(b"preference-applied", preference.applied)] if preference.applied else []
        extra += negotiation.trace_header(request.trace)
        if preference.wait_s and self._waiting.is_free(request.caller):
            submitted, end = await self._submit_and_wait(request, preference.wait_s)
        else:
            submitted, end = await self._submit(request, new_job_id(model)), None
        if end is None:
            return await self._accepted(send, request, submitted, extra)
        response = await self._results.answer(end, accept=head.get(b"accept", b"").decode("latin-1"))
        response.raw_headers += [(b"location", b"/v1/jobs/%b" % str(end.id).encode("ascii")), *extra]
        await response(scope, receive, send)
        return 200

    async def _submit(self, request: SubmitRequest, job: JobId, *, reply_to: str = "") -> Submitted:
        ttl_s = request.model.info.limits.result_ttl_s
        return await self._submitter.store(
            request, job, deadline_s=job_deadline(request), result_ttl_s=ttl_s, reply_to=reply_to
        )

    async def _submit_and_wait(self, request: SubmitRequest, wait_s: float) -> tuple[Submitted, Push | None]:
        """The stored job, or the first of its idempotency key, and its end; None if the wait passes first."""
        job = new_job_id(request.model.name)
        with self._waiting.open(request.caller), self._store.waiter(job) as waiter:
            submitted = await self._submit(request, job, reply_to=self._store.channel)
            is_first = submitted.id == job
            end = await waiter.next_end(wait_s, stop=self._lifetime.is_draining) if is_first else None
        if not is_first:
            end = await self._end_of_first(request, submitted.id, wait_s)
        return submitted, end

    async def _end_of_first(self, request: SubmitRequest, job: JobId, wait_s: float) -> Push | None:
        """The end of the job that an earlier request with the same idempotency key made; None if the wait passes first."""
        with self._waiting.open(request.caller), self._store.waiter(job) as waiter:
            known = await self._store.watch(job)
            if known is None:
                raise first_is_gone(job)
            return Push.of_end(known, None) or await waiter.next_end(wait_s, stop=self._lifetime.is_draining)

    async def _accepted(self, send: Send, request: SubmitRequest, submitted: Submitted, extra: Headers) -> int:
        backlog, owner, delay_s = request.model.backlog, request.caller.owner, request.options.delay_s
        own = min(submitted.depth, backlog.open.get(owner, submitted.depth)) - 1
        ahead = backlog.jobs_before(owner, own, submitted.depth - 1)
        wait_s = delay_s or eta_s(ahead, backlog, request.version.capacity, time.monotonic())
        body = await self._body(request, submitted, own, wait_s)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"location", b"/v1/jobs/%b" % str(submitted.id).encode("ascii")),
            (b"retry-after", b"%d" % retry_after(wait_s or 1.0, draw=random.random())),
            *extra,
        ]
        await wire.answer(send, 202, headers, body)
        return 202

    async def _body(self, request: SubmitRequest, submitted: Submitted, own: int, wait_s: float | None) -> bytes:
        if submitted.status is SubmitStatus.EXISTING:
            known = await self._store.read(submitted.id)
            if known is None:
                raise first_is_gone(submitted.id)
            return job_body(known)
        return accepted_body(
            submitted.id,
            version=request.version.name,
            priority=request.options.priority,
            position=None if request.options.delay_s else max(0, own),
            eta_s=wait_s,
            trace_id=request.trace.trace_id if request.trace is not None else "",
            tags=request.options.tags,
        )
