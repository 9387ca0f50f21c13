"""The failed inbox: its jobs are listed, dismissed and replayed singly, by group or by model, in steps (D35)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from penstock.broker.store.aio import AsyncStore
from penstock.errors import BadRequest, CallerError, CapacityError, PenstockError
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.audit import note_changes
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.jobs.failures import FaultSide, fault_of, group_id, kind_of
from penstock.gateway.jobs.job_list import JobList
from penstock.gateway.jobs.replay import Replays
from penstock.gateway.jobs.results import visible_job
from penstock.gateway.jobs.views import job_view
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.models.rollouts import read_object
from penstock.job import Job, JobId, parse_job_id

# A replay of many jobs is split into requests of this size, so that each one is short.
REPLAY_JOBS = 100
# One request to dismiss looks at most at this many jobs of the model's inbox.
DISMISS_JOBS = 2_000
# An export has at most this many lines; `after` continues it.
EXPORT_JOBS = 10_000
MOST_IDS = 1_000
_READ_JOBS = 200
_CONCURRENT = 25
NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Chosen:
    """Jobs of one model's inbox: those of a group (empty: of any), behind the job `before` (empty: from the newest)."""

    model: str
    group: str = ""
    before: str = ""

    def has(self, job: Job) -> bool:
        return not self.group or group_id(kind_of(job)) == self.group


@dataclass(frozen=True, slots=True)
class InboxStep:
    """What one request did. `left_out` jobs were refused, the last one because of `why`. `stopped`: why it had to pause, for
    instance a full queue. `before`: the job after which the next step continues; `ended`: no job is left.
    """

    done: int = 0
    left_out: int = 0
    why: str = ""
    stopped: str = ""
    before: str = ""
    ended: bool = False


class Inbox:
    """Used by the routes and the dashboard. Callers see the jobs of their owner; managers see all jobs."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry, replays: Replays) -> None:
        self._store = store
        self._registry = registry
        self._replays = replays
        self._list = JobList(store, registry)

    async def dismiss_jobs(self, ids: Sequence[str], caller: Caller) -> int:
        """Dismisses all of the jobs, or raises `NotFound` if the caller may not see one of them."""
        jobs = [await visible_job(self._store, parse_job_id(one), caller) for one in ids]
        queues: dict[str, list[JobId]] = {}
        for job in jobs:
            queues.setdefault(job.id.queue, []).append(job.id)
        return sum([await self._store.dismiss(own) for own in queues.values()])

    async def dismiss(self, chosen: Chosen, caller: Caller) -> InboxStep:
        """Raises `NotFound` for an unknown model."""
        done, read, last = 0, 0, chosen.before
        while read < DISMISS_JOBS:
            page = await self._list.failed(caller, chosen.model, after=last or None, limit=_READ_JOBS)
            jobs = [job.id for job in page.jobs if chosen.has(job)]
            for queue in dict.fromkeys(job.queue for job in jobs):
                done += await self._store.dismiss([job for job in jobs if job.queue == queue])
            read, last = read + _READ_JOBS, page.next_after
            if not last:
                break
        return InboxStep(done=done, before=last, ended=not last)

    async def replay(self, chosen: Chosen, caller: Caller, *, version: str = "") -> InboxStep:
        """Raises `NotFound` for an unknown model. A full queue stops the step; the remaining jobs stay in the inbox."""
        page = await self._list.failed(caller, chosen.model, after=chosen.before or None, limit=_READ_JOBS)
        jobs = [job for job in page.jobs if chosen.has(job)][:REPLAY_JOBS]
        is_cut = len(jobs) == REPLAY_JOBS
        before = str(jobs[-1].id) if is_cut else page.next_after or chosen.before
        outcomes: list[JobId | PenstockError] = []
        for at in range(0, len(jobs), _CONCURRENT):
            outcomes += await asyncio.gather(*(self._replay_one(job, caller, version) for job in jobs[at : at + _CONCURRENT]))
            if any(isinstance(outcome, CapacityError) for outcome in outcomes):
                break
        stopped = next((outcome.message for outcome in outcomes if isinstance(outcome, CapacityError)), "")
        refused = [outcome for outcome in outcomes if isinstance(outcome, CallerError)]
        return InboxStep(
            done=sum(isinstance(outcome, JobId) for outcome in outcomes),
            left_out=len(refused),
            why=refused[0].message if refused else "",
            stopped=stopped,
            before=chosen.before if stopped else before,
            ended=not (is_cut or page.next_after or stopped),
        )

    async def _replay_one(self, job: Job, caller: Caller, version: str) -> JobId | PenstockError:
        try:
            # The key contains the job's id: two simultaneous replays make one new job per old one.
            made = await self._replays.replay(job.id, caller, version=version, key=f"replay {job.id}")
        except (CallerError, CapacityError) as refusal:
            return refusal
        return made.submitted.id

    async def lines(
        self, caller: Caller, model: str, *, group: str = "", fault: str = "", after: str = ""
    ) -> AsyncIterator[bytes]:
        """Each job as a line of JSON, newest first, with its `group` and its `fault`; at most `EXPORT_JOBS`."""
        chosen, left, last = Chosen(model, group), EXPORT_JOBS, after
        while left > 0:
            page = await self._list.failed(caller, model or None, after=last or None, limit=min(left, _READ_JOBS))
            jobs = [job for job in page.jobs if chosen.has(job) and (not fault or fault_of(job) == fault)]
            yield b"".join(_line(job) for job in jobs)
            left, last = left - _READ_JOBS, page.next_after
            if not last:
                return

    async def check(self, model: str) -> None:
        """Raises `NotFound` for an unknown model; an empty name means all models."""
        if model:
            await self._registry.find(model)


def _line(job: Job) -> bytes:
    return orjson.dumps({**job_view(job), "group": group_id(kind_of(job)), "fault": fault_of(job).value}) + b"\n"


async def exported(lines: AsyncIterator[bytes], headers: dict[str, str]) -> Response:
    """Reads the first lines before the response begins, so that a missing store is a 503 and not a truncated response."""
    first = await anext(lines, b"")

    async def all_lines() -> AsyncIterator[bytes]:
        yield first
        async for more in lines:
            yield more

    return StreamingResponse(all_lines(), media_type=NDJSON, headers=headers)


_CHOICE: dict[str, Any] = {
    "model": {"type": "string"},
    "group": {"type": "string", "description": "As GET /v1/failed has it; without it all jobs of the model"},
    "before": {"type": "string", "description": "The `before` of the previous answer"},
}
_IDS = {"type": "array", "items": {"type": "string"}, "maxItems": MOST_IDS, "description": "Jobs, in the place of a model"}
_DISMISS = {"type": "object", "properties": {**_CHOICE, "ids": _IDS}, "additionalProperties": False}
_REPLAY = {
    "type": "object",
    "required": ["model"],
    "properties": {**_CHOICE, "version": {"type": "string", "description": "Without it the one that each job failed with"}},
    "additionalProperties": False,
}


class InboxRoutes:
    """GET /v1/failed, POST /v1/failed:dismiss and /v1/failed:replay."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        tags: list[str | Enum] = ["jobs"]
        add = router.add_api_route
        add("/v1/failed", self.show, methods=["GET"], tags=tags, summary="The failed inbox as JSON Lines")
        post: dict[str, Any] = {"methods": ["POST"], "tags": tags, "status_code": 202}
        add("/v1/failed:dismiss", self.dismiss, summary="Take jobs off the failed inbox", openapi_extra=_body(_DISMISS), **post)
        add("/v1/failed:replay", self.replay, summary="Run failed jobs again", openapi_extra=_body(_REPLAY), **post)
        return router

    async def show(
        self,
        caller: CallerParam,
        model: str = "",
        group: str = "",
        fault: Annotated[FaultSide | None, Query(description="Whose: the caller's input, or the model's and all else.")] = None,
        after: Annotated[str, Query(description="The last id of the previous answer.")] = "",
    ) -> Response:
        """One job per line, newest first, with its `group` and its `fault`; at most 10,000 are looked at."""
        await self._inbox.check(model)
        if after:
            parse_job_id(after)
        return await exported(self._inbox.lines(caller, model, group=group, fault=fault or "", after=after), {})

    async def dismiss(self, request: Request, caller: CallerParam) -> Response:
        """`{"ids": [...]}`, or `{"model": "square"}` with a `group` or without. Up to 2,000 jobs are looked at."""
        body = _checked(await read_object(request), _DISMISS)
        if "ids" in body:
            step = InboxStep(await self._inbox.dismiss_jobs(body["ids"], caller), ended=True)
        else:
            step = await self._inbox.dismiss(_chosen(body), caller)
        return _answer(request, step)

    async def replay(self, request: Request, caller: CallerParam) -> Response:
        """`{"model": "square", "group": "...", "version": "2"}`. Up to 100 jobs; each gets one new job, however often."""
        body = _checked(await read_object(request), _REPLAY)
        return _answer(request, await self._inbox.replay(_chosen(body), caller, version=body.get("version", "")))


def _answer(request: Request, step: InboxStep) -> Response:
    note_changes(request, step.done)
    more = {} if step.ended else {"before": step.before}
    left = {"left_out": step.left_out, "why": step.why} if step.left_out else {}
    stopped = {"stopped": step.stopped} if step.stopped else {}
    return json_response({"done": step.done, "has_more": not step.ended, **more, **left, **stopped}, status=202)


def _chosen(body: dict[str, Any]) -> Chosen:
    if not body.get("model"):
        raise BadRequest("the body names neither jobs nor a model", hint='Send {"model": ...}, or {"ids": [...]}.')
    return Chosen(body["model"], body.get("group", ""), body.get("before", ""))


def _checked(body: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Raises `BadRequest` for a body that does not match the schema."""
    known = schema["properties"]
    for name, value in body.items():
        if name not in known:
            raise BadRequest(f"{name[:60]!r} is nothing here", hint=f"There are {', '.join(known)}.")
        if name == "ids" and not _are_ids(value):
            raise BadRequest(f"ids is a list of up to {MOST_IDS} job ids")
        if name != "ids" and not isinstance(value, str):
            raise BadRequest(f"{name} is a text")
    return body


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_IDS and all(isinstance(one, str) for one in value)


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
