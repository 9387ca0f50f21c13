"""POST /v1/models/{model}[/versions/{version}]/jobs: store a job, answer with it or, on request, with its output."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from penstock.broker.backlog import UNKNOWN_DRAIN_S, eta_s
from penstock.broker.records import SubmitStatus, Submitted
from penstock.gateway.asgi import negotiation, wire
from penstock.gateway.asgi.negotiation import Head
from penstock.gateway.asgi.problems import Headers, retry_after
from penstock.gateway.asgi.wire import Receive, Scope, Send
from penstock.gateway.jobs.results import first_is_gone
from penstock.gateway.jobs.submitting.draft import SubmitRequest
from penstock.gateway.jobs.views import accepted_body, job_body

if TYPE_CHECKING:
    from penstock.gateway.services import Services


class SubmitEndpoint:
    """POST /v1/models/{model}[/versions/{version}]/jobs."""

    def __init__(self, services: Services) -> None:
        self._preferred = services.preferred
        self._submitter = services.submitter
        self._store = services.store
        self._results = services.results

    async def __call__(self, scope: Scope, receive: Receive, send: Send, head: Head, model: str, version: str) -> int:
        """Returns the status code that was sent."""
        draft = self._submitter.inputs.draft(scope, receive, head, model, version, kind="jobs", is_awaited=False)
        request = await self._submitter.prepare(draft)
        preference = negotiation.parse_preference(head.get(b"prefer"))
        extra: Headers = [(b"preference-applied", preference.applied)] if preference.applied else []
        extra += negotiation.trace_header(request.trace)
        wait_s = self._preferred.allowed_s(request, preference.wait_s)
        submitted, end = await self._preferred.submit(request, wait_s)
        if end is None:
            return await self._accepted(send, request, submitted, extra)
        response = await self._results.answer(end, accept=head.get(b"accept", b"").decode("latin-1"))
        response.raw_headers += [(b"location", b"/v1/jobs/%b" % str(end.id).encode("ascii")), *extra]
        await response(scope, receive, send)
        return 200

    async def _accepted(self, send: Send, request: SubmitRequest, submitted: Submitted, extra: Headers) -> int:
        backlog, owner, delay_s = request.model.backlog, request.caller.owner, request.options.delay_s
        # The reply to the submit has the depth of one partition.
        depth = int(backlog.depth) if backlog.depths else submitted.depth
        own = min(depth, backlog.open.get(owner, depth)) - 1
        ahead = backlog.jobs_before(owner, own, depth - 1)
        wait_s = delay_s or eta_s(ahead, backlog, request.version.capacity, time.monotonic())
        # A caller who asks too early asks again. Without a ready slot there is no estimate of the time.
        unknown_s = 1.0 if request.version.capacity.ready_slots else UNKNOWN_DRAIN_S
        body = await self._body(request, submitted, own, wait_s)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"location", b"/v1/jobs/%b" % str(submitted.id).encode("ascii")),
            (b"retry-after", b"%d" % retry_after(wait_s or unknown_s, draw=random.random())),
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
