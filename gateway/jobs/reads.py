"""Routes that read jobs, models and workers, and the route that cancels a job."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from penstock.broker.backlog import UNKNOWN_DRAIN_S, eta_s
from penstock.broker.contract import CancelStatus
from penstock.broker.records import Push
from penstock.errors import BadRequest, Conflict, NotFound
from penstock.gateway.asgi.negotiation import parse_wait
from penstock.gateway.asgi.problems import retry_after
from penstock.gateway.asgi.ranges import Conditions, is_match
from penstock.gateway.asgi.wire import UNTRUSTED, json_response
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.jobs.job_list import MAX_PAGE, JobList
from penstock.gateway.jobs.many import IDS, ManyJobs
from penstock.gateway.jobs.results import missing_job, visible_job
from penstock.gateway.jobs.timeline import timeline
from penstock.gateway.jobs.views import etag, job_body, job_view, timeline_view
from penstock.gateway.models.registry import ModelEntry
from penstock.gateway.models.views import model_view, worker_view
from penstock.job import PUBLIC_STATES, Job, JobId, JobState, parse_job_id
from penstock.run import checked_tag

if TYPE_CHECKING:
    from penstock.gateway.services import Services

JSON = "application/json"

Wait = Annotated[str | None, Query(description="Seconds that the response may wait, at most 30.", examples=["20"])]
Range = Annotated[str | None, Header(alias="range", description="One range of bytes", examples=["bytes=0-1023"])]
Status = StrEnum("Status", {state.upper(): state for state in PUBLIC_STATES})  # type: ignore[misc]


class JobReads:
    """Status, result, timeline, list and cancellation of jobs; models; workers. `timelines`: additions of extensions."""

    def __init__(
        self, services: Services, many: ManyJobs, timelines: Sequence[Callable[[Job], Awaitable[Mapping[str, Any]]]]
    ) -> None:
        self._many = many
        self._timelines = timelines
        self._job_log = services.job_log
        self._waiting = services.waiting
        self._store = services.store
        self._registry = services.registry
        self._list = JobList(services.store, services.registry)
        self._results = services.results
        self._lifetime = services.lifetime

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        jobs: list[str | Enum] = ["jobs"]
        models: list[str | Enum] = ["models"]
        one, add = "/v1/jobs/{job_id}", router.add_api_route
        get = partial(add, methods=["GET"])
        get("/v1/jobs", self.page, tags=jobs, summary="Jobs, newest first", name="page")
        get(one, self.status, tags=jobs, summary="One job", name="job")
        add(one, self.cancel, methods=["DELETE"], tags=jobs, summary="Cancel a job", name="delete", status_code=202)
        add(f"{one}/cancel", self.cancel, methods=["POST"], tags=jobs, summary="Cancel a job", status_code=202)
        get(f"{one}/result", self.result, tags=jobs, summary="A job's output", name="result")
        get(f"{one}/result/parts/{{place}}", self.file, tags=jobs, summary="One file of a job's output", name="file")
        get(f"{one}/timeline", self.timeline, tags=jobs, summary="Why a job was slow", name="timeline")
        get(f"{one}/traceback", self.traceback, tags=jobs, summary="What the model's code raised", name="traceback")
        get("/v1/models", self.models, tags=models, summary="Models", name="models")
        get("/v1/models/{model}", self.model, tags=models, summary="One model", name="model")
        get("/v1/workers", self.workers, tags=models, summary="Live workers", name="workers")
        return router

    async def status(
        self, job_id: str, caller: CallerParam, wait: Wait = None, if_none_match: Annotated[str | None, Header()] = None
    ) -> Response:
        job = parse_job_id(job_id)
        wait_s = parse_wait(wait)
        record = await self._changed(job, wait_s, if_none_match, caller) if wait_s else await self._store.read(job)
        if record is None or not caller.sees(record.owner):
            raise await missing_job(self._store, job, caller)
        tag = etag(record)
        if if_none_match is not None and is_match(if_none_match, tag):
            return Response(status_code=304, headers={"etag": tag})
        return self._job_response(record, status=200, headers={"etag": tag, "cache-control": "no-cache"})

    async def result(
        self,
        job_id: str,
        caller: CallerParam,
        wait: Wait = None,
        range_: Range = None,
        if_range: Annotated[str | None, Header()] = None,
        if_none_match: Annotated[str | None, Header()] = None,
        accept: Annotated[str, Header(description="multipart/form-data: a bundle with all of its files")] = "",
    ) -> Response:
        job = parse_job_id(job_id)
        wait_s = parse_wait(wait)
        end = await self._pushed(job, wait_s, caller) if wait_s else None
        if end is None:
            outcome = await self._end(job, caller)
            if isinstance(outcome, Job):
                return self._job_response(outcome, status=202, headers={})
            end = outcome
        response = await self._results.answer(end, accept=accept, conditions=Conditions(range_, if_range, if_none_match))
        response.wait_in(self._waiting.open(caller))
        return response

    async def file(
        self,
        job_id: str,
        place: int,
        caller: CallerParam,
        range_: Range = None,
        if_range: Annotated[str | None, Header()] = None,
        if_none_match: Annotated[str | None, Header()] = None,
    ) -> Response:
        end = await self._end(parse_job_id(job_id), caller)
        if isinstance(end, Job):
            return self._job_response(end, status=202, headers={})
        response = await self._results.file(end, place, Conditions(range_, if_range, if_none_match))
        response.wait_in(self._waiting.open(caller))
        return response

    async def _end(self, job: JobId, caller: Caller) -> Push | Job:
        """The end of a job that the caller may see; the job itself if it has not ended."""
        result = await self._store.result(job)
        if result is None or not caller.sees(result[0].owner):
            raise await missing_job(self._store, job, caller)
        return Push.of_end(*result) or result[0]

    async def timeline(self, job_id: str, caller: CallerParam) -> Response:
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        locations = await self._store.locations(tried.worker for tried in job.tries)
        view = timeline_view(timeline(job, now=await self._store.now(), locations=locations))
        for more in self._timelines:
            view |= await more(job)
        return json_response(view)

    async def traceback(self, job_id: str, caller: CallerParam) -> Response:
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        text = await self._store.traceback(job.id)
        if not text:
            raise NotFound(
                f"no traceback of job {job.id} is kept",
                hint=f"Set keep_tracebacks = true in [models.{job.model}]; `penstock up --reload` keeps them anyway.",
            )
        return Response(text, media_type="text/plain; charset=utf-8", headers=UNTRUSTED)

    async def cancel(self, job_id: str, caller: CallerParam) -> Response:
        job = parse_job_id(job_id)
        record = await visible_job(self._store, job, caller)
        outcome = await self._store.cancel(job, owner=record.owner)
        self._job_log.log_cancelled(job, outcome, version=record.version, trace=record.trace)
        record = await visible_job(self._store, job, caller)
        # A repeat gets the answer of the first call, which may have been lost.
        if outcome is CancelStatus.FINAL and record.state is not JobState.CANCELLED:
            raise Conflict(f"job {job} has already ended: {record.state.public}", hint="A job that has ended never changes.")
        return self._job_response(record, status=202, headers={})

    async def page(
        self,
        caller: CallerParam,
        model: str | None = None,
        status: Status | None = None,
        tag: Annotated[str | None, Query(description="Only jobs that were submitted with this tag.")] = None,
        after: Annotated[str | None, Query(description="Id of the last job of the previous page.")] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        ids: Annotated[str | None, IDS] = None,
        wait: Wait = None,
        outputs: Annotated[bool, Query(description="With `ids`: small JSON outputs as `output`.")] = False,
    ) -> Response:
        if ids is not None:
            if model or status or tag or after:
                raise BadRequest("ids names the jobs; model, status, tag and after choose them otherwise", hint="Send either.")
            return await self._many.page(ids, parse_wait(wait), caller, outputs=outputs)
        if wait is not None:
            raise BadRequest("a list is not waited for; wait takes ids", hint="GET /v1/jobs?ids=ID,ID&wait=20")
        wanted = checked_tag(tag) if tag is not None else None
        state = status.value if status else None
        listed = await self._list.page(caller, model=model, status=state, tag=wanted, after=after, limit=limit)
        view: dict[str, Any] = {"data": [job_view(job) for job in listed.jobs], "has_more": bool(listed.next_after)}
        if listed.next_after:
            view["next_after"] = listed.next_after
        return json_response(view)

    async def models(self) -> Response:
        return json_response(
            {"object": "list", "data": [model_view(entry, self._registry.workers) for entry in self._registry.models.values()]}
        )

    async def model(self, model: str) -> Response:
        entry, _ = await self._registry.find(model)
        return json_response(model_view(entry, self._registry.workers))

    async def workers(self) -> Response:
        await self._registry.refresh()
        return json_response({"data": [worker_view(worker) for worker in self._registry.workers]})

    async def _changed(self, job: JobId, wait_s: float, seen: str | None, caller: Caller) -> Job | None:
        """The record after its next change; at once if the job has ended, is another owner's, or if `seen` is outdated."""
        with self._waiting.open(caller), self._store.waiter(job) as waiter:
            record = await self._store.watch(job, every_change=True, owner=caller.only_owner)
            if record is None or record.state.final or not caller.sees(record.owner):
                return record
            if seen is not None and not is_match(seen, etag(record)):
                return record
            # Without `seen`, a caller waits for another status; progress counts as a change only with it.
            kept = record.state if seen is None else None
            await waiter.next_change(wait_s, stop=self._lifetime.is_draining, ignoring=kept)
        return await self._store.read(job)

    async def _pushed(self, job: JobId, wait_s: float, caller: Caller) -> Push | None:
        """The end of a running job as soon as it is pushed; None if the job had already ended, or if the wait is over."""
        with self._waiting.open(caller), self._store.waiter(job) as waiter:
            record = await self._store.watch(job, owner=caller.only_owner)
            if record is None or record.state.final or not caller.sees(record.owner):
                return None
            return await waiter.next_end(wait_s, stop=self._lifetime.is_draining)

    def _job_response(self, job: Job, *, status: int, headers: dict[str, str]) -> Response:
        remaining_s = self._remaining(job)
        if not job.state.final:
            wait_s = UNKNOWN_DRAIN_S if remaining_s is None else remaining_s
            headers = {**headers, "retry-after": str(retry_after(wait_s, draw=random.random()))}
        return Response(job_body(job, eta_s=remaining_s), status_code=status, media_type=JSON, headers=headers)

    def _remaining(self, job: Job) -> float | None:
        """Estimated seconds until the job has run; None if it has ended or there is no estimate."""
        entry = self._registry.models.get(job.model)
        version = entry.versions.get(job.version) if entry else None
        if entry is None or version is None or job.state.final:
            return None
        return _eta(entry, job, version.capacity.batch_s(0), now=time.monotonic())


def _eta(entry: ModelEntry, job: Job, run_s: float, *, now: float) -> float | None:
    if job.position is None:
        return run_s or None
    # The model's other partitions have about as many jobs before it.
    before = job.position * entry.info.partitions
    ahead = entry.backlog.jobs_before(job.owner, before, before if not job.owner else math.inf)
    return eta_s(ahead, entry.backlog, entry.versions[job.version].capacity, now)
