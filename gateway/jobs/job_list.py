"""The jobs that a caller may see, newest first, page by page. A page reads a bounded number of records (D61)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from penstock.broker.contract import JobIndex
from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.auth.keys import Caller
from penstock.gateway.models.finding import unknown_model
from penstock.gateway.models.registry import ModelRegistry
from penstock.job import Job, JobId, parse_job_id

MAX_PAGE = 200
# A status filter may drop most records. This bounds the reads of one request; the cursor continues from there.
MAX_READ = 500
# One call reads at most this many records, so that it blocks the store for a few milliseconds at most.
_CALL = 100


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
        self,
        caller: Caller,
        *,
        model: str | None = None,
        status: str | None = None,
        tag: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> JobPage:
        """`after` is the id of the last job of the previous page. Raises `NotFound` for an unknown model."""
        data, last, read, more = list[Job](), parse_job_id(after) if after else None, 0, True
        queues, index = self.queues(model), JobIndex.ALL if tag is None else JobIndex.TAGGED
        while more and len(data) < limit and read < MAX_READ:
            wanted = min(MAX_READ - read, _CALL if status else limit - len(data))
            jobs, more = await newest(self._store, queues, index, caller, before=last, limit=wanted, tag=tag or "")
            last, read = jobs[-1] if jobs else last, read + len(jobs)
            data += [job for job in await records(self._store, jobs) if status is None or job.state.public == status]
        shown = data[:limit]
        if len(data) > limit:
            return JobPage(shown, str(shown[-1].id))
        return JobPage(shown, str(last) if more and last else "")

    async def failed(self, caller: Caller, model: str | None, *, after: str | None, limit: int) -> JobPage:
        """The caller's part of the failed inbox."""
        last, queues = parse_job_id(after) if after else None, self.queues(model)
        jobs, more = await newest(self._store, queues, JobIndex.INBOX, caller, before=last, limit=limit)
        return JobPage(await records(self._store, jobs), str(jobs[-1]) if more else "")

    def queues(self, model: str | None) -> list[str]:
        """The queues that a list reads. Raises `NotFound` for an unknown model."""
        known = self._registry.models
        if model is not None and model not in known:
            raise unknown_model(model, known)
        entries = [known[model]] if model is not None else known.values()
        return [queue for entry in entries for queue in queues_of_model(entry.info)]


async def newest(
    store: AsyncStore,
    queues: Sequence[str],
    index: JobIndex,
    caller: Caller,
    *,
    before: JobId | None,
    limit: int,
    tag: str = "",
) -> tuple[list[JobId], bool]:
    """The newest jobs that the caller may see in an index over all queues, and whether there are more."""
    owner, serial = caller.only_owner or "", before.serial if before else ""
    ask = partial(store.newest, index=index, owner=owner, before=serial, limit=limit + 1, tag=tag)
    pages = await asyncio.gather(*map(ask, queues))
    jobs = sorted((job for page in pages for job in page), key=lambda job: job.serial, reverse=True)
    return jobs[:limit], len(jobs) > limit


async def records(store: AsyncStore, jobs: Sequence[JobId]) -> list[Job]:
    """The records of jobs of any models, newest first. Jobs deleted in the meantime are left out."""

    async def read(queue: str) -> list[Job]:
        own = [job for job in jobs if job.queue == queue]
        parts = [own[at : at + _CALL] for at in range(0, len(own), _CALL)]
        return [job for part in parts for job in await store.records(part)]

    pages = await asyncio.gather(*map(read, dict.fromkeys(job.queue for job in jobs)))
    return sorted((job for page in pages for job in page), key=lambda job: job.id.serial, reverse=True)
