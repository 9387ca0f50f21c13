"""The pages of runs: the list, and one run with its settings, progress, files and the cancel button."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter
from starlette.responses import Response

from penstock.broker.blobs.uploads import FileRecord
from penstock.errors import Gone
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.render import HEADERS, Renderer
from penstock.gateway.dashboard.rows.run_rows import may_cancel, run_row
from penstock.gateway.files import WholeFile
from penstock.gateway.runs.service import RunService
from penstock.gateway.runs.views import metadata_of
from penstock.run import Run

PAGE_RUNS = 50
_SHOWN_FAULTS = 20


class RunPages:
    """The routes below /ui/runs. `words`: the names on the pages for kinds of runs from extensions."""

    def __init__(self, renderer: Renderer, service: RunService, words: Mapping[str, str]) -> None:
        self._renderer = renderer
        self._service = service
        self._words = words

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/ui/runs", self.runs, methods=["GET"])
        router.add_api_route("/ui/runs/{run_id}", self.run, methods=["GET"])
        router.add_api_route("/ui/runs/{run_id}/output", self.output, methods=["GET"])
        router.add_api_route("/ui/runs/{run_id}/errors", self.errors, methods=["GET"])
        router.add_api_route("/ui/runs/{run_id}/cancel", self.cancel, methods=["POST"])

    async def runs(self, caller: CallerParam, after: str = "") -> Response:
        if after:
            await self._service.visible(after, caller)
        page = await self._service.page(caller, after=after, limit=PAGE_RUNS)
        now = await self._service.now()
        rows = [run_row(run, now, self._words) for run in page.runs]
        shown = {
            "here": "runs",
            "runs": rows,
            "words": list(self._words.values()),
            "live": any(row.live for row in rows),
            "first": not after,
            "after": after,
            "next_after": page.next_after,
        }
        return await self._renderer.page("runs.html", caller, shown)

    async def run(self, run_id: str, caller: CallerParam) -> Response:
        run = await self._service.visible(run_id, caller)
        files = await self._service.output_files(run)
        faults = run.details.get("errors")
        shown = {
            "here": "runs",
            "run": run,
            "row": run_row(run, await self._service.now(), self._words),
            "input": self._service.files.id_of(run.spec.input) or run.spec.input,
            "output": files.output,
            "errors": files.errors,
            "faults": faults[:_SHOWN_FAULTS] if isinstance(faults, list) else [],
            "metadata": metadata_of(run),
            "may_cancel": may_cancel(run, caller),
        }
        return await self._renderer.page("run.html", caller, shown)

    async def output(self, run_id: str, caller: CallerParam) -> Response:
        run = await self._service.visible(run_id, caller)
        return self._download(run, (await self._service.output_files(run)).output)

    async def errors(self, run_id: str, caller: CallerParam) -> Response:
        run = await self._service.visible(run_id, caller)
        return self._download(run, (await self._service.output_files(run)).errors)

    async def cancel(self, run_id: str, caller: CallerParam) -> Response:
        run = await self._service.cancel(await self._service.visible(run_id, caller))
        return self._renderer.redirect(f"/ui/runs/{run.id}")

    def _download(self, run: Run, record: FileRecord | None) -> Response:
        if record is None:
            raise Gone(f"run {run.id} has no such file: it is not written yet, or its retention is over")
        headers = {**HEADERS, "content-security-policy": "sandbox"}
        return WholeFile.of(self._service.files.content(record), record.filename, headers=headers)
