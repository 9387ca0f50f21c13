"""Cancels stages of jobs that ended while no executor drove them: it had died, and a caller cancelled the job meanwhile.

Drives cancel the stages of their own jobs. Each job of the pipeline is read once when it is first seen, and again at each look
until it has ended, so none is missed, however many come or wait.
"""

# D100: docs/design/pipelines.md
from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredModel
from penstock.extensions.pipelines.worker.drive import answered
from penstock.job import Job, JobId, JobState
from penstock.model_spec import ModelInfo

_EVERY_S = 60.0
_PAGE = 256
# Ended jobs that are remembered, so that a look knows where the one before it began.
_REMEMBERED = 8_192
_UNDRIVEN = (JobState.CANCELLED, JobState.DEAD, JobState.EXPIRED)


class Leftovers:
    """For one executor of the pipeline `model`. `stage_jobs`: the jobs that run the stages of one of them."""

    def __init__(self, store: AsyncStore, model: str, stage_jobs: Callable[[JobId], Sequence[JobId]]) -> None:
        self._store, self._model, self._stage_jobs = store, model, stage_jobs
        self._open: set[JobId] = set()
        # In the order in which they were seen; the values say nothing.
        self._ended: dict[JobId, None] = {}

    async def run(self) -> None:
        while True:
            await self.look()
            # Many workers may drive one pipeline, and they need not all look at the same moment.
            await asyncio.sleep(_EVERY_S * random.uniform(0.5, 1.0))

    async def look(self) -> None:
        """Cancel what is left of the jobs that have ended since the last look; the first one looks at all that are kept."""
        info = (await answered(self._store.models)).get(self._model, StoredModel()).info
        for queue in queues_of_model(info or ModelInfo(self._model)):
            await self._note_new(queue)
        waiting = list(self._open)
        for first in range(0, len(waiting), _PAGE):
            page = waiting[first : first + _PAGE]
            jobs = {job.id: job for job in await answered(partial(self._store.records, page))}
            for id in page:
                await self._tidy(id, jobs.get(id))
        while len(self._ended) > _REMEMBERED:
            del self._ended[next(iter(self._ended))]

    async def _note_new(self, queue: str) -> None:
        """Page back until a page has no job that is new."""
        before = ""
        while True:
            page = await answered(partial(self._store.newest, queue, before=before, limit=_PAGE))
            new = [id for id in page if id not in self._open and id not in self._ended]
            self._open.update(new)
            if len(page) < _PAGE or not new:
                return
            before = page[-1].serial

    async def _tidy(self, id: JobId, job: Job | None) -> None:
        if job is not None and not job.state.final:
            return
        if job is not None and job.state in _UNDRIVEN:
            for stage in self._stage_jobs(id):
                await answered(partial(self._store.cancel, stage, owner=job.owner))
        self._open.discard(id)
        self._ended[id] = None
