"""/v1/runs: create, list, read and cancel runs over files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.gateway.asgi.wire import json_body, json_response
from penstock.gateway.auth.audit import note_changes
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.files import visible_file
from penstock.gateway.runs.columns import check_columns
from penstock.gateway.runs.request import (
    LONGEST_WINDOW_S,
    RunMembers,
    RunRequest,
    allowed_path,
    check_metadata,
    fingerprint,
    key_of,
    read_body,
    request_with,
)
from penstock.gateway.runs.service import RunFilter, RunOutputFiles
from penstock.gateway.runs.views import part_view, run_view
from penstock.run import (
    MAX_TAGS,
    MOST_PARTS,
    FailureLimit,
    Run,
    RunSpec,
    RunState,
    check_said,
    checked_tag,
    checked_tags,
    format_of,
    refuse_driven,
)

if TYPE_CHECKING:
    from penstock.gateway.services import Services

OUTPUT_FORMATS = ("jsonl", "parquet", "csv", "tsv")
INPUT_FORMATS = ("", "jsonl", "csv", "tsv", "parquet", "text", "files")
MAX_COLUMNS = 256
_TEXT = {"type": "string"}
# The request is recorded; a driver acts on it later.
_ASKED: dict[str, Any] = {"methods": ["POST"], "status_code": 202}
_MAX_FAILED = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9]+ *%?$"}],
    "description": "The run fails if more rows fail: a number, or a share of all rows. Default: 10% in runs of over 100 rows",
}
_PAIRS = {"type": "object", "additionalProperties": _TEXT}
_TagParam = Annotated[str, Query(description="The tag of the runs.")]
_MEMBERS = {
    "model": _TEXT,
    "version": _TEXT,
    "input": {**_TEXT, "description": "The id of an uploaded file, or a path below one of runs.roots"},
    "input_format": {"enum": list(INPUT_FORMATS)},
    "output_format": {"enum": list(OUTPUT_FORMATS)},
    "columns": _PAIRS,
    "carry": {"type": "array", "items": _TEXT},
    "max_failed": _MAX_FAILED,
    "shard_rows": {"type": "integer", "minimum": 0},
    "deadline_s": {"type": "number", "minimum": 0},
    "metadata": _PAIRS,
    "tags": {"type": "array", "items": _TEXT, "maxItems": MAX_TAGS},
    "headers": {**_PAIRS, "description": "Headers of the request that the handler of every row is told"},
    "query": {**_PAIRS, "description": "Query parameters that the handler of every row is told"},
    "parts": {
        "type": "integer",
        "minimum": 1,
        "maximum": MOST_PARTS,
        "description": "Parts of the input, each driven by itself; runners on several hosts share them",
    },
}


class RunRoutes:
    """The routes of /v1/runs."""

    def __init__(self, services: Services, members: Sequence[RunMembers] = ()) -> None:
        """`members`: the members that extensions read in the body of a new run."""
        self._members, self._body = members, request_with(members)
        self._first = " ".join(name for one in members for name, _, _ in one.fields)
        self._service = services.runs
        self._registry = services.registry
        self._settings = services.settings
        self._uploads = services.uploads

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["runs"])
        add = router.add_api_route
        add("/v1/runs", self.create, summary="Start a run over a file", openapi_extra=self._document(), **_ASKED)
        add("/v1/runs", self.page, methods=["GET"], summary="Runs, newest first")
        add("/v1/runs:cancel", self.cancel_tagged, summary="Cancel the runs of a tag", **_ASKED)
        add("/v1/runs/{run_id}", self.one, methods=["GET"], summary="One run and its progress")
        add("/v1/runs/{run_id}/cancel", self.cancel, summary="Cancel a run", **_ASKED)
        add("/v1/runs/{run_id}/retry", self.retry, summary="Run the failed rows of a completed run again", **_ASKED)
        return router

    def _document(self) -> dict[str, Any]:
        members = _MEMBERS | {name: schema for one in self._members for name, schema in one.schema.items()}
        schema = {"type": "object", "required": ["model", "input"], "properties": members}
        return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    async def create(
        self, request: Request, caller: CallerParam, idempotency_key: Annotated[str | None, Header()] = None
    ) -> Response:
        wanted = read_body(await json_body(request, self._settings.gateway, self._uploads), self._body)
        spec = await self._spec(wanted, caller)
        words, key = self._words(wanted, caller, spec.model), key_of(idempotency_key)
        digest = fingerprint(wanted, self._first)
        run = await self._service.create(spec, caller.owner, key=key, fingerprint=digest, words=words)
        return await self._started(run)

    async def retry(
        self, run_id: str, caller: CallerParam, idempotency_key: Annotated[str | None, Header()] = None
    ) -> Response:
        run = await self._service.visible(run_id, caller)
        # A retry cannot name options, so its events use the defaults.
        words = self._words(self._body(model=run.spec.model, input=run.spec.input), caller, run.spec.model)
        return await self._started(await self._service.retry(run, key=key_of(idempotency_key), words=words))

    def _words(self, wanted: RunRequest, caller: Caller, model: str) -> dict[str, str]:
        """The words of a run for extensions."""
        return {name: word for one in self._members for name, word in one.words(wanted, caller, model).items()}

    async def _started(self, run: Run) -> Response:
        headers = {"location": f"/v1/runs/{run.id}", "x-penstock-run": run.id}
        return json_response(await self._view(run), status=202, headers=headers)

    async def page(
        self,
        caller: CallerParam,
        status: RunState | None = None,
        after: Annotated[str, Query(description="The last id of the previous page.")] = "",
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        tag: Annotated[str | None, Query(description="Only runs of this tag.")] = None,
    ) -> Response:
        if after:
            await self._service.visible(after, caller)
        wanted = RunFilter(() if status is None else (status,), "" if tag is None else checked_tag(tag))
        page = await self._service.page(caller, after=after, limit=limit, wanted=wanted)
        now, files = await self._service.now(), await self._service.output_files_of(page.runs)
        views = [self._shown(run, written, now) for run, written in zip(page.runs, files, strict=True)]
        more = page.next_after
        return json_response({"data": views, "has_more": bool(more)} | ({"next_after": more} if more else {}))

    async def one(self, run_id: str, caller: CallerParam) -> Response:
        run = await self._service.visible(run_id, caller)
        parts = [part_view(part) for part in await self._service.parts(run)]
        return json_response(await self._view(run) | ({"parts": parts} if parts else {}))

    async def cancel(self, run_id: str, caller: CallerParam) -> Response:
        run = await self._service.visible(run_id, caller)
        try:
            run = await self._service.cancel(run)
        except Conflict as error:
            raise Conflict(f"run {run_id} cannot be cancelled: {error.message}") from None
        return json_response(await self._view(run), status=202)

    async def cancel_tagged(
        self,
        request: Request,
        caller: CallerParam,
        tag: _TagParam,
        after: Annotated[str, Query(description="The `next_after` of the previous answer.")] = "",
    ) -> Response:
        if after:
            await self._service.visible(after, caller)
        ended = await self._service.cancel_tagged(checked_tag(tag), caller, after=after)
        note_changes(request, len(ended.runs))
        cancelled, more = sum(run.state is RunState.CANCELLED for run in ended.runs), ended.next_after
        view: dict[str, Any] = {"cancelled": cancelled, "requested": len(ended.runs) - cancelled, "has_more": bool(more)}
        return json_response(view | ({"next_after": more} if more else {}), status=202)

    async def _spec(self, wanted: RunRequest, caller: Caller) -> RunSpec:
        check_ranges(wanted)
        metadata = check_metadata(wanted.metadata)
        entry, version = await self._registry.find(wanted.model, wanted.version)
        refuse_driven(entry.name, version.info)
        path, file_format = await self._input(wanted.input, caller)
        kind, schema = wanted.input_format or file_format, version.input_schema
        await asyncio.to_thread(
            check_columns, Path(path), kind or format_of(path.removesuffix(".gz")), wanted.columns, wanted.carry, schema=schema
        )
        return RunSpec(
            model=entry.name,
            version=wanted.version,
            input=path,
            output="",
            input_format=kind,
            output_format=wanted.output_format,
            columns=wanted.columns,
            carry=tuple(wanted.carry),
            max_failed=wanted.max_failed,
            shard_rows=wanted.shard_rows,
            deadline_s=wanted.deadline_s,
            metadata=metadata,
            tags=checked_tags(wanted.tags),
            headers=check_said(wanted.headers, entry.info.request_headers, "headers"),
            query=check_said(wanted.query, entry.info.query, "query"),
            parts=wanted.parts,
        )

    async def _input(self, source: str, caller: Caller) -> tuple[str, str]:
        """The path, and the format of an uploaded file, whose path has no suffix."""
        if source.startswith("file-"):
            record = await visible_file(self._service.files, source, caller)
            return str(self._service.files.content(record)), format_of(record.filename)
        path = await asyncio.to_thread(allowed_path, source, self._settings.runs.roots)
        if not await asyncio.to_thread(path.exists):
            raise NotFound(f"there is nothing at {source[:200]!r}")
        return str(path), ""

    async def _view(self, run: Run) -> dict[str, Any]:
        return self._shown(run, await self._service.output_files(run), await self._service.now())

    def _shown(self, run: Run, files: RunOutputFiles, now: float) -> dict[str, Any]:
        """`now`: by the store's clock."""
        return run_view(run, files, input_name=self._service.files.id_of(run.spec.input) or run.spec.input, now=now)


def _is_limit(value: int | str | None) -> bool:
    try:
        FailureLimit.parse(value)
    except InvalidInput:
        return False
    return True


def check_ranges(wanted: RunRequest) -> None:
    """Raises `InvalidInput` with a pointer to each member that is out of its range."""
    wrong = {
        "/input_format": wanted.input_format not in INPUT_FORMATS and f"must be one of {', '.join(INPUT_FORMATS[1:])}",
        "/output_format": wanted.output_format not in OUTPUT_FORMATS and f"must be one of {', '.join(OUTPUT_FORMATS)}",
        "/max_failed": not _is_limit(wanted.max_failed) and "must be a number of rows, or a share of them, 0% to 100%",
        "/shard_rows": not 0 <= wanted.shard_rows <= 1_000_000 and "must be from 0 to 1000000",
        "/parts": not 1 <= wanted.parts <= MOST_PARTS and f"must be from 1 to {MOST_PARTS}",
        "/deadline_s": not 0 <= wanted.deadline_s <= LONGEST_WINDOW_S and f"must be from 0 to {LONGEST_WINDOW_S:.0f}",
        "/columns": len(wanted.columns) > MAX_COLUMNS and f"may have at most {MAX_COLUMNS} entries",
        "/carry": len(wanted.carry) > MAX_COLUMNS and f"may have at most {MAX_COLUMNS} entries",
    }
    faults = [{"pointer": pointer, "detail": detail} for pointer, detail in wrong.items() if detail]
    if faults:
        raise InvalidInput("the run cannot be created with these values", errors=faults)
