"""Stores a job and, if its caller prefers to wait, returns its end if it comes in time."""

from __future__ import annotations

from penstock.broker.records import Push, Submitted
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.auth.roles import WaitingResponses
from penstock.gateway.jobs.results import first_is_gone
from penstock.gateway.jobs.submitting.draft import SubmitRequest
from penstock.gateway.jobs.submitting.submitter import Submitter
from penstock.job import JobId


class PreferredWait:
    """Waits only within the caller's limit of open responses: a preference to wait need not be honoured."""

    def __init__(self, submitter: Submitter, *, store: AsyncStore, lifetime: Lifetime, waiting: WaitingResponses) -> None:
        self._submitter = submitter
        self._store = store
        self._lifetime = lifetime
        self._waiting = waiting

    def allowed_s(self, request: SubmitRequest, wait_s: float) -> float:
        """The seconds that the answer may wait now, at most those that its caller prefers."""
        return wait_s if wait_s and self._waiting.is_free(request.caller) else 0.0

    async def submit(self, request: SubmitRequest, wait_s: float) -> tuple[Submitted, Push | None]:
        """The stored job, or the first one with its idempotency key, and its end; None if the wait passes first."""
        job = request.new_job_id()
        if not wait_s:
            return await self._submitter.submit(request, job), None
        with self._waiting.open(request.caller), self._store.waiter(job) as waiter:
            submitted = await self._submitter.submit(request, job, reply_to=self._store.channel)
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
