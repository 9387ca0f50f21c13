"""The page of the failed inbox, and the replay of a group, a hundred jobs per request (D35)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.access import Role
from penstock.broker.store.aio import AsyncStore
from penstock.errors import BadRequest, CallerError, CapacityError, PenstockError
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.dashboard.render import Renderer
from penstock.gateway.dashboard.rows.inbox import group_id, grouped, kind_of
from penstock.gateway.dashboard.sessions import form
from penstock.gateway.jobs.job_list import JobList
from penstock.gateway.jobs.replay import Replays
from penstock.gateway.models.registry import ModelRegistry
from penstock.job import Job, JobId

# One page shows at most this many jobs of all models together; older ones are on the next page.
SHOWN_JOBS = 500
# One press of the button becomes requests of this many jobs each, so that no request takes long.
REPLAY_JOBS = 100
_READ_JOBS = 200
# One press of Dismiss looks at most at this many jobs of the model's inbox.
_DISMISS_READS = 2_000
_CONCURRENT = 25


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """How far the replay of a group is. `before` is the job to go on behind. `stopped` says why it had to pause."""

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
    """The routes below /ui/failed."""

    def __init__(self, renderer: Renderer, *, store: AsyncStore, registry: ModelRegistry, replays: Replays) -> None:
        self._renderer = renderer
        self._store = store
        self._registry = registry
        self._replays = replays
        self._list = JobList(store, registry)

    def add_routes(self, router: APIRouter) -> None:
        router.add_api_route("/ui/failed", self.failed, methods=["GET"])
        router.add_api_route("/ui/failed/replay", self.replay, methods=["POST"])
        router.add_api_route("/ui/failed/dismiss", self.dismiss, methods=["POST"])

    async def failed(self, caller: CallerParam, model: str = "", after: str = "") -> Response:
        wanted = model if model in self._registry.models else None
        found = await self._list.failed(caller, wanted, after=after or None, limit=SHOWN_JOBS)
        return await self._renderer.page(
            "failed.html",
            caller,
            {
                "here": "failed",
                "groups": grouped(found.jobs),
                "shown": len(found.jobs),
                "next_after": found.next_after,
                "away": found.away,
                "first": not after,
                "now": await self._store.now(),
                "model": model,
                "models": sorted(self._registry.models),
                "versions": {name: sorted(entry.versions) for name, entry in self._registry.models.items()},
                "replays": not caller.roles.isdisjoint({Role.SUBMIT, Role.MANAGE}),
            },
        )

    async def replay(self, request: Request, caller: CallerParam) -> Response:
        """Replay the next jobs of a group. The page that this returns requests the following ones, until none are left."""
        progress = _progress(await form(request))
        await self._registry.find(progress.model)
        progress = await self._replay_some(progress, caller)
        return await self._renderer.page("_progress.html", caller, {"progress": progress})

    async def dismiss(self, request: Request, caller: CallerParam) -> Response:
        """Take a group off the inbox without a replay. Jobs that failed after the page was shown belong to it as well."""
        progress = _progress(await form(request))
        await self._registry.find(progress.model)
        read, last = 0, ""
        while read < _DISMISS_READS:
            page = await self._list.failed(caller, progress.model, after=last or None, limit=_READ_JOBS)
            await self._store.dismiss([job.id for job in page.jobs if group_id(kind_of(job)) == progress.group])
            read, last = read + _READ_JOBS, page.next_after
            if not last:
                break
        return self._renderer.redirect("/ui/failed")

    async def _replay_some(self, progress: ReplayProgress, caller: Caller) -> ReplayProgress:
        page = await self._list.failed(caller, progress.model, after=progress.before or None, limit=_READ_JOBS)
        chosen = [job for job in page.jobs if group_id(kind_of(job)) == progress.group][:REPLAY_JOBS]
        is_cut = len(chosen) == REPLAY_JOBS
        ended = not is_cut and not page.next_after
        before = str(chosen[-1].id) if is_cut else page.next_after or progress.before
        outcomes: list[JobId | PenstockError] = []
        for at in range(0, len(chosen), _CONCURRENT):
            part = chosen[at : at + _CONCURRENT]
            outcomes += await asyncio.gather(*(self._replay_one(job, caller, progress.version) for job in part))
            if any(isinstance(outcome, CapacityError) for outcome in outcomes):
                break
        return _advanced(progress, outcomes, before=before, ended=ended)

    async def _replay_one(self, job: Job, caller: Caller, version: str) -> JobId | PenstockError:
        try:
            # The key contains the job's id, so that two people who press the button at once make one new job per old one.
            submitted, _, _ = await self._replays.replay(job.id, caller, version=version, key=f"replay {job.id}")
        except (CallerError, CapacityError) as refusal:
            return refusal
        return submitted.id


def _advanced(
    progress: ReplayProgress, outcomes: Sequence[JobId | PenstockError], *, before: str, ended: bool
) -> ReplayProgress:
    """The progress after one request. A full queue pauses the replay, and the jobs that are left stay in the inbox."""
    rejected = [outcome for outcome in outcomes if isinstance(outcome, CapacityError)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, CallerError)]
    return ReplayProgress(
        model=progress.model,
        group=progress.group,
        version=progress.version,
        total=progress.total,
        done=progress.done + sum(isinstance(outcome, JobId) for outcome in outcomes),
        left_out=progress.left_out + len(refused),
        before=progress.before if rejected else before,
        ended=ended and not rejected,
        stopped=rejected[0].message if rejected else "",
        why_left_out=refused[0].message if refused else progress.why_left_out,
    )


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
