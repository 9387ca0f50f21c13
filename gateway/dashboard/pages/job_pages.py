"""The pages of jobs: the list, and one job with its timeline, payloads and actions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.broker.blobs.readers import BlobReader, BytesReader
from penstock.broker.contract import CancelStatus
from penstock.broker.records import Push
from penstock.errors import BadRequest, Conflict, Gone, UnsupportedMedia
from penstock.gateway.asgi.bundles import bundle_content, bundled_file
from penstock.gateway.asgi.content import Content, response_to
from penstock.gateway.asgi.negotiation import OCTETS, base_type
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.parts import DashboardPart, sections
from penstock.gateway.dashboard.render import HEADERS, Renderer
from penstock.gateway.dashboard.rows.job_rows import TONES, actions, attempt_bars, is_put_aside, job_row, stage_bars
from penstock.gateway.dashboard.rows.preview import PREVIEW_BYTES, SHOWN_TYPES, Preview, preview
from penstock.gateway.dashboard.sessions import form
from penstock.gateway.jobs.job_list import JobList
from penstock.gateway.jobs.results import visible_job
from penstock.gateway.jobs.timeline import timeline
from penstock.job import PUBLIC_STATES, Job, JobState, Payload, parse_job_id
from penstock.outputs.bundle import BUNDLE_MEDIA
from penstock.outputs.media import filename_parameters, split_filename
from penstock.run import checked_tag

if TYPE_CHECKING:
    from penstock.gateway.services import Services

PAGE_JOBS = 25


@dataclass(frozen=True, slots=True)
class ShownPayload:
    """The input or the output of a job, prepared for its page."""

    content_type: str
    size: int
    preview: Preview


class JobPages:
    """The routes below /ui/jobs."""

    def __init__(self, renderer: Renderer, services: Services, extensions: Sequence[DashboardPart]) -> None:
        self._renderer = renderer
        self._extensions = extensions
        self._store = services.store
        self._blobs = services.blobs
        self._registry = services.registry
        self._replays = services.replays
        self._job_log = services.job_log
        self._list = JobList(services.store, services.registry)

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/ui/jobs", self.jobs, methods=["GET"])
        router.add_api_route("/ui/jobs/{job_id}", self.job, methods=["GET"])
        router.add_api_route("/ui/jobs/{job_id}/input", self.input, methods=["GET"])
        router.add_api_route("/ui/jobs/{job_id}/output", self.output, methods=["GET"])
        router.add_api_route("/ui/jobs/{job_id}/cancel", self.cancel, methods=["POST"])
        router.add_api_route("/ui/jobs/{job_id}/replay", self.replay, methods=["POST"])

    async def jobs(
        self, caller: CallerParam, model: str = "", status: str = "", tag: str = "", after: str = "", id: str = ""
    ) -> Response:
        """`id`: from the form that opens one job."""
        if id:
            return self._renderer.redirect(f"/ui/jobs/{parse_job_id(id.strip())}")
        if status and status not in PUBLIC_STATES:
            raise BadRequest(f"there is no status {status[:20]!r}", hint=f"The statuses are {', '.join(PUBLIC_STATES)}.")
        wanted = checked_tag(tag) if tag else None
        page = await self._list.page(
            caller, model=model or None, status=status or None, tag=wanted, after=after or None, limit=PAGE_JOBS
        )
        now = await self._store.now()
        return await self._renderer.page(
            "jobs.html",
            caller,
            {
                "here": "jobs",
                "jobs": [job_row(job, now) for job in page.jobs],
                "next_after": page.next_after,
                "first": not after,
                "model": model,
                "status": status,
                "tag": tag,
                "models": sorted(self._registry.models),
                "statuses": PUBLIC_STATES,
            },
        )

    async def job(self, job_id: str, caller: CallerParam) -> Response:
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        locations = await self._store.locations(attempt.worker for attempt in job.tries)
        job_timeline = timeline(job, now=await self._store.now(), locations=locations)
        input, output = await asyncio.gather(self._input(job), self._output(job))
        more = await sections(part.of_job(job) for part in self._extensions if part.of_job is not None)
        entry = self._registry.models.get(job.model)
        return await self._renderer.page(
            "job.html",
            caller,
            {
                "here": "jobs",
                "job": job,
                "put_aside": is_put_aside(job),
                "status": job.state.public,
                "tone": TONES[job.state.public],
                "timeline": job_timeline,
                "bars": stage_bars(job_timeline.stages),
                "attempts": attempt_bars(job_timeline),
                "sections": more,
                "actions": actions(job, caller),
                "input": input,
                "output": output,
                "versions": sorted(entry.versions) if entry else [],
            },
        )

    async def input(self, job_id: str, caller: CallerParam, shown: bool = False) -> Response:
        """`shown`: for an image or a player on the page, instead of a download."""
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        stored = await self._store.input(job.id)
        if stored is None:
            raise Gone(f"the input of job {job.id} is no longer stored")
        content = await self._opened(stored.payload)
        return _shown_media(content, stored.payload) if shown else _download(content, f"{job.id}.input")

    async def output(self, job_id: str, caller: CallerParam, file: int | None = None, shown: bool = False) -> Response:
        """`file`: the place of one file of a bundle. `shown`: as for `input`."""
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        end = await self._store.result(job.id)
        if end is None or end[1] is None:
            raise Gone(f"job {job.id} has no output")
        content, name = await self._opened(end[1]), split_filename(end[1].content_type)[1]
        if shown:
            return _shown_media(content, end[1])
        if file is not None and end[1].content_type == BUNDLE_MEDIA:
            entry, content = await bundled_file(content, job.id, file)
            name = entry.filename or f"{job.id}.{file}"
        elif end[1].content_type == BUNDLE_MEDIA:
            content, name = (await bundle_content(content, job.id, accept="")).reader, f"{job.id}.json"
        return _download(content, name or f"{job.id}.output")

    async def cancel(self, job_id: str, caller: CallerParam) -> Response:
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        outcome = await self._store.cancel(job.id, owner=job.owner)
        self._job_log.log_cancelled(job.id, outcome, version=job.version, trace=job.trace)
        if outcome is CancelStatus.FINAL and (await visible_job(self._store, job.id, caller)).state is not JobState.CANCELLED:
            raise Conflict(f"job {job.id} has already ended", hint="The job's page shows how it ended.")
        return self._renderer.redirect(f"/ui/jobs/{job.id}")

    async def replay(self, job_id: str, request: Request, caller: CallerParam) -> Response:
        """`seen`: the replay that the page showed. It is part of the key, so that a second click makes no second job."""
        job = parse_job_id(job_id)
        fields = await form(request)
        key = f"page {job} {fields.get('seen', '')[:100]}"
        made = await self._replays.replay(job, caller, version=fields.get("version", ""), key=key)
        return self._renderer.redirect(f"/ui/jobs/{made.submitted.id}")

    async def _input(self, job: Job) -> ShownPayload | None:
        stored = await self._store.input(job.id)
        return None if stored is None else await self._shown(stored.payload)

    async def _output(self, job: Job) -> ShownPayload | None:
        end = await self._store.result(job.id) if Push.of_end(job, None) else None
        return None if end is None or end[1] is None else await self._shown(end[1])

    async def _shown(self, payload: Payload) -> ShownPayload | None:
        media, name = split_filename(payload.content_type)
        shown = media if name is None else f"{media}, {name}"
        if not payload.blob:
            data = payload.data
            return ShownPayload(shown, len(data), preview(media, data[:PREVIEW_BYTES], len(data)))
        try:
            head, size = await asyncio.to_thread(self._blobs.peek, payload.blob, PREVIEW_BYTES)
        except Gone:
            return None
        return ShownPayload(shown, size, preview(media, head, size))

    async def _opened(self, payload: Payload) -> BlobReader:
        return await asyncio.to_thread(self._blobs.open, payload.blob) if payload.blob else BytesReader(payload.data)


def _shown_media(content: BlobReader, payload: Payload) -> Response:
    """An image or audio for the page itself. Raises `UnsupportedMedia` for other types, which browsers must not render."""
    media = base_type(payload.content_type)
    if media not in SHOWN_TYPES:
        raise UnsupportedMedia(f"{media[:60]!r} is not shown on pages", hint="Download it.")
    headers = {**HEADERS, "content-security-policy": "default-src 'none'; sandbox", "content-type": media}
    return response_to(Content(content, headers, ""), conditions=None)


def _download(content: BlobReader, name: str) -> Response:
    """A download of unknown type, so that no browser runs or renders a caller's content."""
    disposition = f"attachment; {filename_parameters(name)}"
    headers = {**HEADERS, "content-disposition": disposition, "content-security-policy": "sandbox", "content-type": OCTETS}
    return response_to(Content(content, headers, name), conditions=None)
