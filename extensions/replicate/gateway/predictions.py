"""/replicate/v1/predictions: jobs as Replicate's clients make, read, list and cancel them (D85)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from penstock.errors import Gone, InvalidInput, NotFound
from penstock.extensions.replicate.gateway.inputs import UploadedInputs
from penstock.extensions.replicate.gateway.outputs import shown_output
from penstock.extensions.replicate.gateway.request import (
    PredictionRequest,
    cancel_after_s,
    in_words,
    prediction_request,
    split_version,
    wait_s,
    wanted_events,
)
from penstock.extensions.replicate.gateway.stream import PredictionStream
from penstock.extensions.replicate.gateway.views import PREFIX, prediction_view, version_id
from penstock.extensions.webhooks.gateway.words import asked_webhook
from penstock.gateway.asgi.negotiation import JSON, read_head
from penstock.gateway.asgi.wire import json_body, json_response
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.jobs.events.encoding import SSE, STREAM_HEADERS
from penstock.gateway.jobs.job_list import JobList
from penstock.gateway.jobs.results import ended, visible_job
from penstock.gateway.jobs.submitting.draft import Draft
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.services import Services
from penstock.inputs.request import unpacked
from penstock.job import Job, JobId, JobState, Payload, parse_job_id

_PAGE = 100
# A client that polls gets the beginning of a longer stream, and all of it at the end. One part is one reply of the store.
_MOST_CHUNKS = 4_096
_PART = 256
_TEXT = {"type": "string"}
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["input"],
                "properties": {"version": {**_TEXT, "examples": ["square:1"]}, "input": {"type": "object"}},
            }
        }
    },
}
CancelAfter = Annotated[str | None, Header(description="The deadline of the prediction: 90s, 5m, 1h30m")]
Prefer = Annotated[str, Header(description="wait, wait=N")]


@dataclass
class AskedPrediction:
    """A request for a prediction. `wanted` is its body, which is read once the model of the path is known; its input goes to
    the job, and `shown` keeps what the answer shows of it.
    """

    request: Request
    caller: Caller
    cancel_after: str | None
    wanted: PredictionRequest | None = None
    shown: orjson.Fragment | None = None

    @property
    def read(self) -> PredictionRequest:
        assert self.wanted is not None
        return self.wanted


class Predictions:
    """The routes of predictions."""

    def __init__(self, services: Services) -> None:
        table, store = services.settings.gateway, services.store
        self._submitter = services.submitter
        self._limits, self._root = table, table.root_path
        self._store = store
        self._registry = services.registry
        self._results = services.results
        self._uploads = services.uploads
        self._inputs = UploadedInputs(services.files, table.max_raw_bytes, services.uploads, within_s=table.body_timeout_s)
        self._most_shown = services.settings.store.inline_input_bytes
        self._stream = PredictionStream(store, services.follower, lifetime=services.lifetime, waiting=services.waiting)
        self._preferred = services.preferred
        self._waiting = services.waiting
        self._list = JobList(store, services.registry)

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["replicate"])
        add, one = router.add_api_route, f"{PREFIX}/predictions/{{job_id}}"
        made: dict[str, Any] = {"methods": ["POST"], "status_code": 201, "openapi_extra": {"requestBody": _BODY}}
        add(f"{PREFIX}/predictions", self.create, summary="Make a prediction", **made)
        for kind in ("models", "deployments"):
            path = f"{PREFIX}/{kind}/{{owner}}/{{name}}/predictions"
            add(path, self.create_of_model, summary="Make a prediction of a model", name=f"create_of_{kind}", **made)
        add(f"{PREFIX}/predictions", self.page, methods=["GET"], summary="Predictions, newest first")
        add(one, self.one, methods=["GET"], summary="One prediction")
        add(f"{one}/cancel", self.cancel, methods=["POST"], summary="Cancel a prediction")
        add(f"{one}/stream", self.stream, methods=["GET"], summary="What a prediction yields (SSE)")
        return router

    async def create(
        self, request: Request, caller: CallerParam, prefer: Prefer = "", cancel_after: CancelAfter = None
    ) -> Response:
        with self._submitter.counting():
            wanted = prediction_request(await self._body(request), needs_version=True)
        entry, version = await self._version(wanted.version)
        asked = AskedPrediction(request, caller, cancel_after, wanted)
        return await self._create(asked, entry.name, version.name, prefer)

    async def create_of_model(
        self,
        owner: str,
        name: str,
        request: Request,
        caller: CallerParam,
        prefer: Prefer = "",
        cancel_after: CancelAfter = None,
    ) -> Response:
        return await self._create(AskedPrediction(request, caller, cancel_after), name, "", prefer)

    async def page(
        self,
        request: Request,
        caller: CallerParam,
        cursor: Annotated[str | None, Query(description="Of the `next` of the page before.")] = None,
    ) -> Response:
        listed, base = await self._list.page(caller, after=cursor, limit=_PAGE), base_url(request, self._root)
        following = f"{base}{PREFIX}/predictions?cursor={listed.next_after}" if listed.next_after else None
        views = [prediction_view(job, base, streams=self._streams(job)) for job in listed.jobs]
        return json_response({"previous": None, "next": following, "results": views})

    async def one(self, job_id: str, request: Request, caller: CallerParam) -> Response:
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        return json_response(await self._view(job, base_url(request, self._root)))

    async def cancel(self, job_id: str, request: Request, caller: CallerParam) -> Response:
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        await self._store.cancel(job.id, owner=job.owner)
        job = await visible_job(self._store, job.id, caller)
        return json_response(await self._view(job, base_url(request, self._root)))

    async def stream(
        self, job_id: str, caller: CallerParam, last_event_id: Annotated[str | None, Header()] = None
    ) -> StreamingResponse:
        # Checked before the stream begins: the response for a missing job is a plain 404, not an event.
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        self._waiting.check(caller)
        events = self._stream.events(job.id, last_event_id, caller)
        return StreamingResponse(events, media_type=SSE, headers=STREAM_HEADERS)

    async def _body(self, request: Request) -> Any:
        return await json_body(request, self._limits, self._uploads)

    async def _version(self, text: str) -> tuple[ModelEntry, VersionEntry]:
        """Raises `InvalidInput` for a version that does not exist, or that several models have."""
        model, version = split_version(text)
        try:
            if model:
                return await self._registry.find(model, version)
            having = [entry.name for entry in self._registry.models.values() if version in entry.versions]
            if len(having) > 1:
                names = ", ".join(version_id(name, version) for name in having[:5])
                raise InvalidInput(f"several models have a version {version[:64]!r}", hint=f"Name one: {names}")
            return await self._registry.find(*(having[0], version) if having else (version,))
        except NotFound as error:
            raise InvalidInput(f"the version cannot be used: {error.message}", hint=error.hint) from None

    async def _create(self, asked: AskedPrediction, model: str, version: str, prefer: str) -> Response:
        request, caller = asked.request, asked.caller
        draft = Draft(
            model=model,
            version=version,
            caller=caller,
            kind="replicate",
            is_awaited=False,
            input=partial(self._checked, asked),
            options=partial(self._wanted, asked),
            headers=request.headers.raw,
            head=read_head(request.headers.raw),
            scope=request.scope,
            # The protocol has no repeats.
            key="",
            keeps_body=False,
        )
        submit, base = await self._submitter.prepare(draft), base_url(request, self._root)
        waits = self._preferred.allowed_s(submit, wait_s(prefer))
        submitted, _ = await self._preferred.submit(submit, waits)
        job = await visible_job(self._store, submitted.id, caller)
        view = await self._view(job, base) | {"input": asked.shown}
        if not job.state.final:
            # Clients take every other word for the end.
            view["status"] = "starting"
        applied = {"preference-applied": f"wait={waits:g}"} if waits else {}
        headers = {"location": view["urls"]["get"], "x-penstock-job": str(job.id), "x-penstock-version": job.version}
        headers |= applied
        return json_response(view, status=201, headers=headers)

    async def _wanted(self, asked: AskedPrediction, entry: ModelEntry, _: VersionEntry) -> SubmitOptions:
        if asked.wanted is None:
            asked.wanted = prediction_request(await self._body(asked.request), needs_version=False)
        url, letters = wanted_events(asked.wanted)
        deadline_s = cancel_after_s(asked.cancel_after)
        # A longer time changes nothing: the model's own limit comes first.
        deadline_s = None if deadline_s is None else min(deadline_s, entry.info.limits.deadline_s)
        return SubmitOptions(deadline_s=deadline_s, said=asked_webhook(url, letters))

    async def _checked(self, asked: AskedPrediction, version: VersionEntry) -> Payload:
        given, asked.read.input = asked.read.input, {}
        asked.shown = shown_input(given, self._most_shown)
        given = await self._inputs.resolved(given, base_url(asked.request, self._root), asked.request.scope)
        data = orjson.dumps(given)
        del given
        try:
            return await self._submitter.inputs.json(data, version)
        except InvalidInput as error:
            raise in_words(error) from None

    async def _view(self, job: Job, base: str) -> dict[str, Any]:
        streams = self._streams(job)
        output: Any = None
        if job.state is JobState.SUCCEEDED:
            try:
                output = await shown_output(self._results, ended(job), base)
            except Gone:
                return prediction_view(job, base, streams=streams) | {"data_removed": True}
        elif streams and job.state is JobState.LEASED:
            output = await self._so_far(job.id)
        return prediction_view(job, base, streams=streams, given=await self._input(job), output=output)

    async def _so_far(self, job: JobId) -> list[Any]:
        """What a running job has yielded, up to `_MOST_CHUNKS`. Clients read the list again, and take what is new in it."""
        chunks: list[bytes] = []
        mark = ""
        while len(chunks) < _MOST_CHUNKS:
            look = await self._store.follow(job, mark=mark, seen=len(chunks), limit=_PART)
            if look is None:
                break
            part = look.stream
            if part.mark != mark:
                # Another attempt yields now, and the chunks read so far are not part of its stream.
                chunks, mark = [], part.mark
            chunks += part.chunks
            if len(part.chunks) < _PART:
                break
        return [orjson.Fragment(chunk) for chunk in chunks]

    async def _input(self, job: Job) -> Any:
        """The input while it is stored, unless it is large: it would be sent with every answer."""
        kept = None if job.state.final else await self._store.input(job.id)
        if kept is None or kept.payload.blob:
            return None
        payload = unpacked(kept.payload)
        value = orjson.loads(payload.data) if payload.content_type == JSON else None
        return value if isinstance(value, dict) else None

    def _streams(self, job: Job) -> bool:
        return self._registry.is_streaming(job)


def shown_input(given: dict[str, Any], most_bytes: int) -> orjson.Fragment | None:
    """What an answer shows of an input while the job runs, which may take long; None for a large one."""
    data = orjson.dumps(given)
    return orjson.Fragment(data) if len(data) <= most_bytes else None


def base_url(request: Request, root: str) -> str:
    """The address by which the caller reached this gateway. A proxy that speaks TLS for it says so in X-Forwarded-Proto."""
    # A caller that sends another value changes only the links in its own response.
    said = request.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower()
    return f"{said if said in ('http', 'https') else request.url.scheme}://{request.headers.get('host', '')}{root}"
