"""The body of an event: what its receiver reads. It is built at each attempt, from records that no longer change.

The body of a progress event is built from the event itself, because its job goes on meanwhile.
"""

# D92: docs/design/webhooks.md
from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import orjson

from penstock.broker.blobs.files import BlobStore
from penstock.broker.blobs.readers import BlobReader
from penstock.broker.blobs.uploads import FileStore
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.runs import AsyncRunStore
from penstock.errors import Gone
from penstock.extensions.openai import RUN_KIND
from penstock.extensions.openai.gateway.views import BATCH_PREFIX
from penstock.extensions.replicate.gateway.outputs import shown_output
from penstock.extensions.replicate.gateway.views import cog_view, prediction_view, result_url
from penstock.extensions.webhooks.contract import PROGRESS, DueEvent
from penstock.extensions.webhooks.settings import WebhooksSettings
from penstock.extensions.webhooks.webhook import AS_COG, AS_PREDICTION, event_id
from penstock.gateway.asgi.negotiation import JSON, base_type
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.jobs.results import ResultReader, ended
from penstock.gateway.jobs.views import job_view
from penstock.gateway.runs.service import output_files
from penstock.gateway.runs.views import run_view
from penstock.inputs.file import File, data_url
from penstock.job import Job, JobProgress, JobState, job_in
from penstock.outputs.media import split_filename
from penstock.run import Run
from penstock.settings.tables import Settings
from penstock.trace_context import stored


@dataclass(frozen=True, slots=True)
class EventBody:
    """`headers`: those of the trace to which the job belongs."""

    content: bytes
    headers: dict[str, str]


class EventBodies:
    """Raises `StoreUnavailable`."""

    def __init__(self, settings: Settings, *, store: AsyncStore, blobs: BlobStore) -> None:
        webhooks = settings.extension(WebhooksSettings)
        self._base = webhooks.public_url
        self._most_bytes = webhooks.max_result_bytes
        self._store = store
        self._runs = AsyncRunStore(store)
        self._results = ResultReader(store, blobs)
        self._files = FileStore(settings.files_dir)

    async def of_run(self, event: DueEvent) -> EventBody | None:
        """None if there is no record of the run any more."""
        run = await self._runs.read(event.id)
        if run is None:
            return None
        is_batch = run.spec.kind == RUN_KIND
        return EventBody(orjson.dumps(_batch_event(event, run) if is_batch else await self._run_event(event, run)), {})

    async def of_job(self, event: DueEvent, queue: str) -> EventBody | None:
        """None if there is no record of the job any more."""
        job = await self._store.read(job_in(event.id, queue))
        if job is None:
            return None
        as_prediction = AS_PREDICTION in event.letters or AS_COG in event.letters
        value = await self._prediction(event, job) if as_prediction else await self._job_event(event, job)
        trace = stored(job.trace)
        headers = {} if trace is None else {"traceparent": trace.parent} | ({"tracestate": trace.state} if trace.state else {})
        return EventBody(orjson.dumps(value), headers)

    async def _run_event(self, event: DueEvent, run: Run) -> dict[str, Any]:
        files = await asyncio.to_thread(output_files, self._files, run)
        view = run_view(run, files, input_name=self._files.id_of(run.spec.input) or run.spec.input, now=event.at)
        return _event(event, self._linked(view))

    async def _job_event(self, event: DueEvent, job: Job) -> dict[str, Any]:
        if event.event == PROGRESS:
            data = {"id": str(job.id), "model": job.model, "version": job.version, "status": "running"}
            return _event(event, data | {"progress": _progress(event)})
        # A later replay would change the record, and equal ids are equal bodies.
        view = job_view(replace(job, replayed_as=None))
        return _event(event, self._linked(view) | await self._output(job))

    async def _output(self, job: Job) -> dict[str, Any]:
        """The output, unless it is too large or gone: then the link to the result stands for it."""
        if job.state is not JobState.SUCCEEDED:
            return {}
        try:
            content = await self._results.content(ended(job))
        except Gone:
            return {}
        if content.reader.size > self._most_bytes:
            return {}
        data, media = await _bytes(content.reader), content.headers["content-type"]
        if base_type(media) == JSON:
            return {"output": orjson.Fragment(data)}
        return {"output": data_url(File(data, base_type(split_filename(media)[0])))}

    async def _prediction(self, event: DueEvent, job: Job) -> dict[str, Any]:
        if event.event == PROGRESS:
            now = _progress(event)
            told = JobProgress(now["fraction"], now["note"], event.at, job.attempts)
            job = replace(job, state=JobState.LEASED, progress=told, finished_at=None, error=None)
        output = await self._predicted(job)
        if AS_COG in event.letters:
            return cog_view(job, output)
        return prediction_view(job, self._base, streams=False, output=output)

    async def _predicted(self, job: Job) -> Any:
        if job.state is not JobState.SUCCEEDED:
            return None
        try:
            _, reader = await self._results.opened(ended(job))
            if reader.size > self._most_bytes:
                return result_url(job.id, self._base)
            return await shown_output(self._results, ended(job), self._base)
        except Gone:
            return None

    def _linked(self, view: dict[str, Any]) -> dict[str, Any]:
        """The view with links that begin with the address of this gateway, if the settings name it."""
        return {**view, "links": {name: f"{self._base}{link}" for name, link in view["links"].items()}}


def _event(event: DueEvent, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": event.event, "timestamp": rfc3339(event.at), "data": data}


def _batch_event(event: DueEvent, run: Run) -> dict[str, Any]:
    """As OpenAI's clients unwrap it."""
    return {
        "id": event_id(event.id, event.number),
        "object": "event",
        "type": f"batch.{event.event.partition('.')[2]}",
        "created_at": int(event.at),
        "data": {"id": BATCH_PREFIX + run.id},
    }


def _progress(event: DueEvent) -> dict[str, Any]:
    fraction, _, note = event.said.partition(",")
    return {"fraction": float(fraction or 0), "note": note, "at": rfc3339(event.at)}


async def _bytes(reader: BlobReader) -> bytes:
    return await asyncio.to_thread(lambda: b"".join(reader.pieces(0, reader.size)))
