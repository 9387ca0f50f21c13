"""The page of the failed inbox: failures by group, and their replay, dismissal and export (D35)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.access import Role
from penstock.errors import BadRequest
from penstock.gateway.auth.audit import note_changes
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.render import HEADERS, Renderer
from penstock.gateway.dashboard.sessions import form
from penstock.gateway.jobs.failures import FailureGroup, FaultSide, grouped
from penstock.gateway.jobs.inbox import Chosen, exported
from penstock.gateway.jobs.job_list import JobList
from penstock.job import parse_job_id

if TYPE_CHECKING:
    from penstock.gateway.services import Services

# One page shows at most this many jobs of all models together; older ones are on the next page.
SHOWN_JOBS = 500
# The page of a model shows its largest groups among this many of its newest failures.
_ERROR_JOBS, _ERROR_GROUPS = 200, 5
_TRACEBACK_CHARS = 8_000


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """The progress of a group's replay. The next step continues after the job `before`. `stopped`: why the replay paused."""

    model: str
    group: str
    version: str
    total: int
    done: int = 0
    left_out: int = 0
    before: str = ""
    ended: bool = False
    stopped: str = ""
    why_left_out: str = ""


class FailedPages:
    """The routes below /ui/failed, and the errors of one model."""

    def __init__(self, renderer: Renderer, services: Services) -> None:
        self._renderer = renderer
        self._store = services.store
        self._registry = services.registry
        self._inbox = services.inbox
        self._list = JobList(services.store, services.registry)

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/ui/failed", self.failed, methods=["GET"])
        router.add_api_route("/ui/failed/export", self.export, methods=["GET"])
        router.add_api_route("/ui/failed/replay", self.replay, methods=["POST"])
        router.add_api_route("/ui/failed/dismiss", self.dismiss, methods=["POST"])
        router.add_api_route("/ui/models/{model}/errors", self.errors, methods=["GET"])

    async def failed(self, caller: CallerParam, model: str = "", fault: str = "", after: str = "") -> Response:
        wanted = model if model in self._registry.models else None
        page = await self._list.failed(caller, wanted, after=after or None, limit=SHOWN_JOBS)
        groups = [group for group in grouped(page.jobs) if fault not in (*FaultSide,) or group.fault == fault]
        return await self._renderer.page(
            "failed.html",
            caller,
            {
                "here": "failed",
                "groups": groups,
                "shown": sum(group.count for group in groups),
                "next_after": page.next_after,
                "first": not after,
                "now": await self._store.now(),
                "model": model,
                "fault": fault,
                "models": sorted(self._registry.models),
                "versions": {name: sorted(entry.versions) for name, entry in self._registry.models.items()},
                "replays": not caller.roles.isdisjoint({Role.SUBMIT, Role.MANAGE}),
            },
        )

    async def export(self, caller: CallerParam, model: str = "", group: str = "", fault: str = "", after: str = "") -> Response:
        """The answer of `GET /v1/failed`, as a file."""
        await self._inbox.check(model)
        if after:
            parse_job_id(after)
        disposition = 'attachment; filename="failed.jsonl"'
        lines = self._inbox.lines(caller, model, group=group, fault=fault if fault in (*FaultSide,) else "", after=after)
        return await exported(lines, {**HEADERS, "content-disposition": disposition})

    async def replay(self, request: Request, caller: CallerParam) -> Response:
        """Replay the next jobs of a group. The returned page requests the following ones, until none are left."""
        progress = _progress(await form(request))
        await self._registry.find(progress.model)
        chosen = Chosen(progress.model, progress.group, progress.before)
        step = await self._inbox.replay(chosen, caller, version=progress.version)
        note_changes(request, step.done)
        progress = replace(
            progress,
            done=progress.done + step.done,
            left_out=progress.left_out + step.left_out,
            before=step.before,
            ended=step.ended,
            stopped=step.stopped,
            why_left_out=step.why or progress.why_left_out,
        )
        return await self._renderer.page("_progress.html", caller, {"progress": progress})

    async def dismiss(self, request: Request, caller: CallerParam) -> Response:
        """Take one job, a group, or all of a model off the inbox without a replay, including jobs that failed after the page
        was shown.
        """
        fields = await form(request)
        if job := fields.get("job"):
            done = await self._inbox.dismiss_jobs([job], caller)
        else:
            model = fields.get("model", "")
            group = fields.get("group", "") if model else ""
            models = [model] if model else list(self._registry.models)
            done = sum([(await self._inbox.dismiss(Chosen(name, group), caller)).done for name in models])
        note_changes(request, done)
        return self._renderer.redirect("/ui/failed")

    async def errors(self, model: str, caller: CallerParam) -> Response:
        """The newest failures of a model by group, with the traceback of the newest one if it is kept."""
        await self._registry.find(model)
        page = await self._list.failed(caller, model, after=None, limit=_ERROR_JOBS)
        groups = grouped(page.jobs)[:_ERROR_GROUPS]
        shown = {
            "model": model,
            "groups": [(group, await self._traceback(group) if Role.MANAGE in caller.roles else "") for group in groups],
            "now": await self._store.now(),
        }
        return await self._renderer.page("_errors.html", caller, shown)

    async def _traceback(self, group: FailureGroup) -> str:
        return (await self._store.traceback(group.newest.id))[-_TRACEBACK_CHARS:]


def _progress(fields: dict[str, str]) -> ReplayProgress:
    try:
        return ReplayProgress(
            model=fields["model"],
            group=fields["group"],
            version=fields.get("version", ""),
            total=_number(fields.get("total", "0")),
            done=_number(fields.get("done", "0")),
            left_out=_number(fields.get("left_out", "0")),
            before=fields.get("before", ""),
        )
    except (KeyError, ValueError):
        raise BadRequest("the form does not name the group to replay", hint="Open the failed inbox again.") from None


def _number(text: str) -> int:
    return min(10**9, max(0, int(text[:9])))
