"""POST /v1/jobs:cancel?tag=: cancel the jobs with a tag that the caller may see, a few hundred per request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from penstock.broker.contract import CancelStatus, JobIndex
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.audit import note_changes
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.jobs.job_list import MAX_READ, JobList, newest, records
from penstock.gateway.jobs.submitting.submitter import GatewayJobLog
from penstock.gateway.models.registry import ModelRegistry
from penstock.job import Job, parse_job_id
from penstock.run import checked_tag

_AT_ONCE = 100


class CancelTagged:
    def __init__(self, store: AsyncStore, *, registry: ModelRegistry, job_log: GatewayJobLog) -> None:
        self._store = store
        self._list = JobList(store, registry)
        self._job_log = job_log

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        router.add_api_route(
            "/v1/jobs:cancel", self.answer, methods=["POST"], tags=["jobs"], summary="Cancel the jobs of a tag", status_code=202
        )
        return router

    async def answer(
        self,
        request: Request,
        caller: CallerParam,
        tag: Annotated[str, Query(description="The tag of the jobs.")],
        model: str | None = None,
        after: Annotated[str | None, Query(description="The `next_after` of the previous answer.")] = None,
    ) -> Response:
        queues, last, read, more = self._list.queues(model), parse_job_id(after) if after else None, 0, True
        wanted, counts = checked_tag(tag), Counter[CancelStatus]()
        while more and read < MAX_READ:
            jobs, more = await newest(self._store, queues, JobIndex.TAGGED, caller, before=last, limit=_AT_ONCE, tag=wanted)
            last, read = jobs[-1] if jobs else last, read + len(jobs)
            counts += await self._cancel_open(await records(self._store, jobs))
        note_changes(request, counts[CancelStatus.CANCELLED] + counts[CancelStatus.REQUESTED])
        view: dict[str, Any] = {
            "cancelled": counts[CancelStatus.CANCELLED],
            "requested": counts[CancelStatus.REQUESTED],
            "has_more": more,
        }
        return json_response(view | ({"next_after": str(last)} if more else {}), status=202)

    async def _cancel_open(self, jobs: Sequence[Job]) -> Counter[CancelStatus]:
        return Counter(await asyncio.gather(*(self._cancel(job) for job in jobs if not job.state.final)))

    async def _cancel(self, job: Job) -> CancelStatus:
        outcome = await self._store.cancel(job.id, owner=job.owner)
        self._job_log.log_cancelled(job.id, outcome, version=job.version, trace=job.trace)
        return outcome
