"""/v1/runs: offline jobs over files, made, watched and cancelled."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.gateway.asgi import negotiation, wire
from penstock.gateway.asgi.wire import json_body
from penstock.gateway.auth.roles import Caller, CallerParam
from penstock.gateway.files import visible_file
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.options import GatewayOptions
from penstock.gateway.runs.request import (
    LONGEST_WINDOW_S,
    RunRequest,
    allowed_path,
    check_metadata,
    fingerprint,
    read_body,
)
from penstock.gateway.runs.service import RunOutputFiles, RunService
from penstock.gateway.runs.views import run_view
from penstock.run import Run, RunSpec, RunState, format_of

OUTPUT_FORMATS = ("jsonl", "parquet")
INPUT_FORMATS = ("", "jsonl", "csv", "tsv", "parquet", "text", "files")
MAX_COLUMNS = 256
_TEXT = {"type": "string"}
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["model", "input"],
                "properties": {
                    "model": _TEXT,
                    "version": _TEXT,
                    "input": {**_TEXT, "description": "The id of an uploaded file, or a path below one of runs.roots"},
                    "input_format": {"enum": list(INPUT_FORMATS)},
                    "output_format": {"enum": list(OUTPUT_FORMATS)},
                    "columns": {"type": "object", "additionalProperties": _TEXT},
                    "carry": {"type": "array", "items": _TEXT},
                    "max_failed": {"type": "integer", "minimum": 0},
                    "shard_rows": {"type": "integer", "minimum": 0},
                    "deadline_s": {"type": "number", "minimum": 0},
                    "metadata": {"type": "object", "additionalProperties": _TEXT},
                },
            }
        }
    },
}


class RunRoutes:
    def __init__(self, desk: RunService, *, registry: ModelRegistry, options: GatewayOptions) -> None:
        self._desk = desk
        self._registry = registry
        self._options = options
        self._room = wire.BodyMemory(options.max_upload_bytes)

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        tags: list[str | Enum] = ["runs"]
        add = router.add_api_route
        add(
            "/v1/runs",
            self.create,
            methods=["POST"],
            tags=tags,
            summary="Start a run over a file",
            status_code=202,
            openapi_extra={"requestBody": _BODY},
        )
        add("/v1/runs", self.page, methods=["GET"], tags=tags, summary="Runs, newest first")
        add("/v1/runs/{run_id}", self.one, methods=["GET"], tags=tags, summary="One run and how far it is")
        add("/v1/runs/{run_id}/cancel", self.cancel, methods=["POST"], tags=tags, summary="Cancel a run", status_code=202)
        return router

    async def create(
        self, request: Request, caller: CallerParam, idempotency_key: Annotated[str | None, Header()] = None
    ) -> Response:
        asked = read_body(await json_body(request, self._options, self._room), RunRequest)
        given = {} if idempotency_key is None else {b"idempotency-key": idempotency_key.encode("latin-1", "replace")}
        spec = await self._spec(asked, caller)
        run = await self._desk.create(spec, caller, key=negotiation.idempotency_key(given), mark=fingerprint(asked))
        headers = {"location": f"/v1/runs/{run.id}", "x-penstock-run": run.id}
        return _json(self._view(run, await self._desk.outcome(run)), status=202, headers=headers)

    async def page(
        self,
        caller: CallerParam,
        status: RunState | None = None,
        after: Annotated[str, Query(description="The last id of the page before.")] = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> Response:
        if after:
            await self._desk.visible(after, caller)
        found, more = await self._desk.page(
            caller, after=after, limit=limit, wanted=lambda run: status is None or run.state is status
        )
        return _json({"data": [self._view(run, await self._desk.outcome(run)) for run in found], "has_more": more})

    async def one(self, run_id: str, caller: CallerParam) -> Response:
        run = await self._desk.visible(run_id, caller)
        return _json(self._view(run, await self._desk.outcome(run)))

    async def cancel(self, run_id: str, caller: CallerParam) -> Response:
        run = await self._desk.visible(run_id, caller)
        try:
            run = await self._desk.cancel(run)
        except Conflict as error:
            raise Conflict(f"run {run_id} cannot be cancelled: {error.message}") from None
        return _json(self._view(run, await self._desk.outcome(run)), status=202)

    async def _spec(self, asked: RunRequest, caller: Caller) -> RunSpec:
        check_numbers(asked)
        metadata = check_metadata(asked.metadata)
        entry, _ = await self._registry.find(asked.model, asked.version)
        given, kind = await self._input(asked.input, caller)
        return RunSpec(
            model=entry.name,
            version=asked.version,
            input=given,
            output="",
            input_format=asked.input_format or kind,
            output_format=asked.output_format,
            columns=asked.columns,
            carry=tuple(asked.carry),
            max_failed=asked.max_failed,
            shard_rows=asked.shard_rows,
            deadline_s=asked.deadline_s,
            metadata=metadata,
        )

    async def _input(self, given: str, caller: Caller) -> tuple[str, str]:
        """The path, and the format if the path does not say it: an uploaded file lies there under its id."""
        if given.startswith("file-"):
            record = await visible_file(self._desk.files, given, caller)
            return str(self._desk.files.content(record)), format_of(record.filename)
        path = await asyncio.to_thread(allowed_path, given, self._options.run_roots)
        if not await asyncio.to_thread(path.exists):
            raise NotFound(f"there is nothing at {given[:200]!r}")
        return str(path), ""

    def _view(self, run: Run, outcome: RunOutputFiles) -> dict[str, Any]:
        named = self._desk.files.id_of(run.spec.input) or run.spec.input
        return run_view(run, outcome, input_name=named, now=time.time())


def check_numbers(asked: RunRequest) -> None:
    """Raises `InvalidInput` with a pointer per member that is out of its range."""
    wrong = {
        "/input_format": asked.input_format not in INPUT_FORMATS and f"is one of {', '.join(INPUT_FORMATS[1:])}",
        "/output_format": asked.output_format not in OUTPUT_FORMATS and f"is one of {', '.join(OUTPUT_FORMATS)}",
        "/max_failed": (asked.max_failed or 0) < 0 and "is at least 0",
        "/shard_rows": not 0 <= asked.shard_rows <= 1_000_000 and "is from 0 to 1000000",
        "/deadline_s": not 0 <= asked.deadline_s <= LONGEST_WINDOW_S and f"is from 0 to {LONGEST_WINDOW_S:.0f}",
        "/columns": len(asked.columns) > MAX_COLUMNS and f"has at most {MAX_COLUMNS} entries",
        "/carry": len(asked.carry) > MAX_COLUMNS and f"has at most {MAX_COLUMNS} entries",
    }
    faults = [{"pointer": pointer, "detail": detail} for pointer, detail in wrong.items() if detail]
    if faults:
        raise InvalidInput("the run cannot be made as asked", errors=faults)


def _json(content: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status_code=status, media_type="application/json", headers=headers)
