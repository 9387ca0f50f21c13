"""What a driver's look for stages without a driver costs the store: it follows the jobs that ended undriven, not those kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis

from penstock.broker.records import BatchStamp, ClaimRequest, Ending, NewJob
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.sync import RedisStore
from penstock.extensions.pipelines.spec import PipelineStage, stage_job
from penstock.extensions.pipelines.store import begin_drive
from penstock.extensions.pipelines.worker.leftovers import Leftovers
from penstock.job import JobId, JobState, Payload, new_job_id
from penstock.model_spec import ModelInfo

STAGE = PipelineStage("only", "model")
GIVEN = Payload("application/json", b"1")
KEPT, AT_ONCE = 10_000, 1_000


@pytest.fixture(scope="module")
def store(redis_url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_url)) as store:
        for model in ("chain", "model"):
            store.announce_model(ModelInfo(model, versions={"1": None}))
        yield store


def finish(store: RedisStore, owner: str, count: int) -> None:
    """Let this owner's jobs of the pipeline run and succeed."""
    for _ in range(count // AT_ONCE):
        store.submit([NewJob(new_job_id("chain"), "1", GIVEN, owner=owner) for _ in range(AT_ONCE)])
        jobs = store.claim(ClaimRequest("chain", "1", "w.0", "n1", AT_ONCE)).jobs
        ends = [Ending(job.id, job.token, JobState.SUCCEEDED, GIVEN) for job in jobs]
        store.finish(ends, worker="w.0", stamp=BatchStamp("b", AT_ONCE, "idle"))


def commands_of_looks(url: str, looks: int) -> list[int]:
    """How many commands the store runs for each look of one driver, those within its functions included."""

    async def looked() -> list[int]:
        store, found = AsyncStore(url), []
        await store.start()
        leftovers = Leftovers(store, "chain", lambda id: [stage_job(id, STAGE)])
        try:
            for _ in range(looks):
                before = commands(url)
                await leftovers.look()
                found.append(commands(url) - before)
        finally:
            await store.close()
        return found

    return asyncio.run(looked())


def commands(url: str) -> int:
    """The commands that touched a record, or a list of jobs."""
    with redis.Redis.from_url(url) as client:
        stats = client.info("commandstats")
    return sum(one["calls"] for name, one in stats.items() if name.startswith(("cmdstat_h", "cmdstat_z")))


def test_a_look_costs_the_store_the_same_however_many_jobs_an_owner_keeps(redis_url: str, store: RedisStore) -> None:
    # Regression: above 8,192 kept jobs every driver read every kept job again at each look.
    finish(store, "hoarder", KEPT)
    store.submit([NewJob(id := new_job_id("chain"), "1", GIVEN, owner="neighbour")])
    assert max(commands_of_looks(redis_url, 3)) < 50
    assert cancelled_with_its_stage(redis_url, store, id)
    assert max(commands_of_looks(redis_url, 1)) < 50


def cancelled_with_its_stage(url: str, store: RedisStore, id: JobId) -> bool:
    stage = stage_job(id, STAGE)
    store.submit([NewJob(stage, "1", GIVEN, owner="neighbour")])
    store.run(begin_drive(id))
    store.cancel(id, owner="neighbour")
    commands_of_looks(url, 1)
    found = store.read(stage)
    return found is not None and found.state is JobState.CANCELLED
