"""The jobs that a caller may see, newest first, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.broker.store.aio import AsyncStore
from penstock.gateway.auth.keys import Caller
from penstock.gateway.models.registry import ModelRegistry, unknown_model
from penstock.job import Job, JobId, parse_job_id

MAX_PAGE = 1_000
# With a status filter one page may take many reads. This bounds one request; the cursor continues from there.
MAX_SCANNED = 5_000
# Characters of any job's serial that a cursor may reveal: the moment and a quarter of the random part.
_SHOWN_CHARS = 14


@dataclass(frozen=True, slots=True)
class JobPage:
    """`next_after` continues the list, even if a filter dropped every job that was read; it is empty at the end."""

    jobs: list[Job]
    next_after: str = ""


class JobList:
    def __init__(self, store: AsyncStore, registry: ModelRegistry) -> None:
        self._store = store
        self._registry = registry

    async def page(
        self, caller: Caller, *, model: str | None = None, status: str | None = None, after: str | None = None, limit: int = 100
    ) -> JobPage:
        """`after` is the id of the last job of the previous page. Raises `NotFound` for an unknown model."""
        before = parse_job_id(after).serial if after else ""
        names = self._names(model)
        data: list[Job] = []
        scanned, more = 0, True
        while more and len(data) < limit and scanned < MAX_SCANNED:
            found, more = await self._newest(names, before=before, limit=min(MAX_PAGE, max(limit, 100)))
            scanned += len(found)
            before = found[-1].id.serial if found else before
            data += [job for job in found if caller.sees(job.owner) and (status is None or job.state.public == status)]
        return _page(data, limit, more=more, cursor=_cursor(before, data))

    def _names(self, model: str | None) -> list[str]:
        known = self._registry.models
        if model is not None and model not in known:
            raise unknown_model(model, known)
        return [model] if model is not None else list(known)

    async def _newest(self, names: Sequence[str], *, before: str, limit: int) -> tuple[list[Job], bool]:
        found = [job for name in names for job in await self._store.jobs(name, before=before, limit=limit + 1)]
        found.sort(key=lambda job: job.id.serial, reverse=True)
        return found[:limit], len(found) > limit


def _page(data: list[Job], limit: int, *, more: bool, cursor: str) -> JobPage:
    shown = data[:limit]
    if not more and len(data) <= limit:
        return JobPage(shown)
    last = shown[-1].id if len(data) >= limit else JobId(cursor, data[-1].id.model if data else "any")
    return JobPage(shown, str(last))


def _cursor(before: str, shown: list[Job]) -> str:
    """Where the list continues: just above the last job read, whose exact id stays hidden, as its owner may be another one."""
    above = before[:_SHOWN_CHARS] + "z" * (len(before) - _SHOWN_CHARS)
    return min(above, shown[-1].id.serial) if shown else above
