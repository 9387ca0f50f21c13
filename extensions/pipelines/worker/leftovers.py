"""Cancels stages of jobs that ended while no executor drove them: it had died, and a caller cancelled the job meanwhile.

Drives cancel the stages of their own jobs. The store lists every other job where it ends, so a look reads these and no others,
however many jobs are kept or wait.
"""

# D147: docs/design/pipelines.md
from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredModel
from penstock.extensions.pipelines.store import answered, read_undriven, undriven
from penstock.job import JobId, job_in
from penstock.model_spec import ModelInfo

_EVERY_S = 60.0


class Leftovers:
    """For one executor of the pipeline `model`. `stage_jobs`: the jobs that run the stages of one of them."""

    def __init__(self, store: AsyncStore, model: str, stage_jobs: Callable[[JobId], Sequence[JobId]]) -> None:
        self._store, self._model, self._stage_jobs = store, model, stage_jobs

    async def run(self) -> None:
        while True:
            await self.look()
            # Many workers may drive one pipeline, and they need not all look at the same moment.
            await asyncio.sleep(_EVERY_S * random.uniform(0.5, 1.0))

    async def look(self) -> None:
        """Cancel what is left of the jobs that ended undriven. An executor that dies here leaves them to the next look."""
        info = (await answered(self._store.models)).get(self._model, StoredModel()).info
        for queue in queues_of_model(info or ModelInfo(self._model)):
            page: list[bytes] = []
            while page := await answered(partial(self._store.run, undriven(queue, done=page))):
                for entry in page:
                    await self._cancel(*read_undriven(entry), queue)

    async def _cancel(self, serial: str, owner: str, queue: str) -> None:
        for stage in self._stage_jobs(job_in(serial, queue)):
            await answered(partial(self._store.cancel, stage, owner=owner))
