"""/v1/batches as OpenAI's clients call it: a batch is a run over the lines of an uploaded file (D41)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from penstock.errors import BadParameter, Conflict, NotFound
from penstock.extensions.openai import RUN_KIND
from penstock.extensions.openai.gateway.batch_request import (
    FIRST_MEMBERS,
    MAX_LINES,
    WINDOW,
    BatchRequest,
    first_model,
    output_ttl_s,
    window_s,
)
from penstock.extensions.openai.gateway.embeddings import Embeddings
from penstock.extensions.openai.gateway.files import OpenAIFiles
from penstock.extensions.openai.gateway.views import BATCH_PREFIX, EMBEDDINGS, as_openai, batch_view, page_of, speaks_openai
from penstock.extensions.webhooks.gateway.requested import webhook_of
from penstock.extensions.webhooks.webhook import BATCH_EVENTS
from penstock.gateway.asgi.negotiation import EXPLAIN, parse_submit_target
from penstock.gateway.asgi.wire import json_body, json_response
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.auth.rules import SEE, STOP, SUBMIT, RouteRules
from penstock.gateway.dashboard.parts import DashboardPart
from penstock.gateway.extending import GatewayPart, Wording
from penstock.gateway.files import visible_file
from penstock.gateway.runs.request import check_metadata, fingerprint, key_of, read_body
from penstock.gateway.runs.service import RunFilter, RunOutputFiles
from penstock.gateway.services import Services
from penstock.run import Run, RunSpec, refuse_driven

# As OpenAI has it.
_MOST_LINES = 50_000
_TEXT = {"type": "string"}
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["input_file_id", "endpoint", "completion_window"],
                "properties": {
                    "input_file_id": _TEXT,
                    "endpoint": {**_TEXT, "examples": [EMBEDDINGS, "/v1/models/square/jobs"]},
                    "completion_window": {**_TEXT, "examples": ["24h", "10m"]},
                    "metadata": {"type": "object", "additionalProperties": _TEXT},
                    "output_expires_after": {
                        "type": "object",
                        "properties": {"anchor": {"const": "created_at"}, "seconds": {"type": "integer"}},
                    },
                    "webhook": {**_TEXT, "description": "The URL to which the batch's end is sent"},
                    "webhook_events": {"type": "array", "items": {"enum": list(BATCH_EVENTS)}},
                },
            }
        }
    },
}

_RULES = RouteRules(
    {
        ("POST", "/v1/embeddings"): SUBMIT,
        ("POST", "/v1/files"): SUBMIT,
        ("GET", "/v1/files"): SEE,
        ("GET", "/v1/files/{file_id}"): SEE,
        ("GET", "/v1/files/{file_id}/content"): SEE,
        ("DELETE", "/v1/files/{file_id}"): STOP,
        ("POST", "/v1/batches"): SUBMIT,
        ("GET", "/v1/batches"): SEE,
        ("GET", "/v1/batches/{batch_id}"): SEE,
        ("POST", "/v1/batches/{batch_id}/cancel"): STOP,
    }
)


class OpenAIBatches:
    """The routes of /v1/batches."""

    def __init__(self, services: Services) -> None:
        self._service = services.runs
        self._registry = services.registry
        self._settings = services.settings
        self._uploads = services.uploads

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["runs"])
        add = router.add_api_route
        add("/v1/batches", self.create, methods=["POST"], summary="Start a batch", openapi_extra={"requestBody": _BODY})
        add("/v1/batches", self.page, methods=["GET"], summary="Batches, newest first")
        add("/v1/batches/{batch_id}", self.one, methods=["GET"], summary="One batch")
        add("/v1/batches/{batch_id}/cancel", self.cancel, methods=["POST"], summary="Cancel a batch")
        return router

    async def create(
        self, request: Request, caller: CallerParam, idempotency_key: Annotated[str | None, Header()] = None
    ) -> Response:
        wanted = read_body(await json_body(request, self._settings.gateway, self._uploads), BatchRequest)
        spec, ttl_s = await self._spec(wanted, caller)
        hook = webhook_of(
            self._settings, wanted.webhook, wanted.webhook_events, caller=caller, model=spec.model, known=BATCH_EVENTS
        )
        words = hook.word_of(caller.owner) if hook else {}
        key, digest = key_of(idempotency_key), fingerprint(wanted, FIRST_MEMBERS)
        run = await self._service.create(spec, caller.owner, key=key, fingerprint=digest, ttl_s=ttl_s, words=words)
        return self._answer(run, RunOutputFiles())

    async def page(
        self,
        caller: CallerParam,
        after: Annotated[str, Query(description="The last id of the previous page.")] = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Response:
        cursor = (await self._visible(after, caller)).id if after else ""
        page = await self._service.page(caller, after=cursor, limit=limit, wanted=RunFilter(kind=RUN_KIND))
        files = await self._service.output_files_of(page.runs)
        views = [self._view(run, written) for run, written in zip(page.runs, files, strict=True)]
        return json_response(page_of(views, has_more=bool(page.next_after)))

    async def one(self, batch_id: str, caller: CallerParam) -> Response:
        run = await self._visible(batch_id, caller)
        return self._answer(run, await self._service.output_files(run))

    async def cancel(self, batch_id: str, caller: CallerParam) -> Response:
        run = await self._visible(batch_id, caller)
        try:
            run = await self._service.cancel(run)
        except Conflict as error:
            raise Conflict(f"batch {batch_id} cannot be cancelled: {error.message}") from None
        return self._answer(run, await self._service.output_files(run))

    async def _visible(self, batch_id: str, caller: Caller) -> Run:
        """The batch, if the caller may see it. Otherwise raises `NotFound`, as for one that never existed (D15)."""
        run = await self._service.find(batch_id.removeprefix(BATCH_PREFIX), caller)
        if run is None or run.spec.kind != RUN_KIND or not batch_id.startswith(BATCH_PREFIX):
            raise NotFound(f"there is no batch {batch_id[:80]!r}")
        return run

    async def _spec(self, wanted: BatchRequest, caller: Caller) -> tuple[RunSpec, float | None]:
        metadata, deadline_s = check_metadata(wanted.metadata or {}), window_s(wanted.completion_window)
        ttl_s = output_ttl_s(wanted)
        record = await visible_file(self._service.files, wanted.input_file_id, caller)
        if record.purpose != "batch":
            raise BadParameter(f"file {record.id} has the purpose {record.purpose!r}, not `batch`", param="input_file_id")
        path = self._service.files.content(record)
        model, version = await self._model(wanted.endpoint, path)
        spec = RunSpec(
            model=model,
            version=version,
            kind=RUN_KIND,
            input=str(path),
            output="",
            input_format="jsonl",
            output_format="jsonl",
            deadline_s=deadline_s,
            endpoint=wanted.endpoint,
            metadata={**metadata, WINDOW: wanted.completion_window, MAX_LINES: str(_MOST_LINES)},
        )
        return spec, ttl_s

    async def _model(self, endpoint: str, path: Path) -> tuple[str, str]:
        """The model and version of the endpoint. For embeddings the model of the first line, empty if that names none."""
        if endpoint == EMBEDDINGS:
            return await asyncio.to_thread(first_model, path), ""
        target = parse_submit_target(endpoint)
        if target is None or target.route.startswith(EXPLAIN):
            raise BadParameter(
                f"a batch cannot have the endpoint {endpoint[:80]!r}, only {EMBEDDINGS} or /v1/models/MODEL/jobs",
                param="endpoint",
            )
        entry, version = await self._registry.find(target.model, target.version)
        refuse_driven(entry.name, version.info)
        return entry.name, target.version

    def _answer(self, run: Run, files: RunOutputFiles) -> Response:
        return json_response(self._view(run, files), headers={"x-penstock-run": run.id})

    def _view(self, run: Run, files: RunOutputFiles) -> dict[str, Any]:
        return batch_view(run, files, input_file=self._service.files.id_of(run.spec.input))


def gateway(services: Services) -> GatewayPart:
    routers = [kind(services).router() for kind in (Embeddings, OpenAIFiles, OpenAIBatches)]
    pages = DashboardPart(run_words={"openai": "OpenAI batch"})
    return GatewayPart(routers, rules=_RULES, wordings=(Wording(speaks_openai, as_openai),), dashboard=pages)
