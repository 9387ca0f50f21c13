"""Pipelines on a real store that changes under them: it loses what it was given last, and operators switch versions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.contract import ReleaseReason
from penstock.broker.records import BatchStamp, ClaimRequest, Ending, GiveBack, NewJob
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.registry import StoredRollout
from penstock.broker.store.sync import RedisStore
from penstock.extensions.pipelines.spec import PipelineSpec, PipelineStage, announced, stage_job
from penstock.extensions.pipelines.store import begin_drive
from penstock.extensions.pipelines.worker import drive, executor
from penstock.extensions.pipelines.worker.drive import Drive, Driven, DriveServices
from penstock.extensions.pipelines.worker.executor import PipelineExecutor, PipelineKnown
from penstock.extensions.pipelines.worker.joiner import Joiner
from penstock.extensions.pipelines.worker.leftovers import Leftovers
from penstock.extensions.pipelines.worker.stage_models import StageModels, StageUnusable
from penstock.job import JobId, JobState, Payload, new_job_id
from penstock.model_spec import ModelInfo, VersionInfo
from penstock.rollout import Rollout
from penstock.workers.slot.batch import Batch
from tests.eventually import eventually

KINDS = {"1": "integer", "2": "string"}
STAGE = PipelineStage("only", "model")
GIVEN, MADE = Payload("application/json", b"1"), Payload("application/json", b"2")


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_url)) as store:
        store.announce_model(ModelInfo("model", versions={"1": None}))
        yield store


def claimed(store: RedisStore, given: Payload = GIVEN) -> Batch:
    """A pipeline's job, as its slot has claimed it."""
    store.submit([NewJob(new_job_id("chain"), "1", given)])
    claim = store.claim(ClaimRequest("chain", "1", "w.0", "n1", 1))
    return Batch(tuple(claim.jobs), "idle", "w.0", "n1", time.monotonic(), leased_at=claim.now)


def lose(url: str) -> None:
    """Lose all that the store has of the stage's model."""
    with redis.Redis.from_url(url) as client:
        client.delete(*client.keys("ps:{model}:*"), *client.keys("penstock.{model}*"))


def end(store: RedisStore, stage: JobId) -> None:
    """As the stage's worker does."""
    [job] = store.claim(ClaimRequest("model", "1", "w.1", "n2", 1)).jobs
    assert job.id == stage
    store.finish([Ending(job.id, job.token, JobState.SUCCEEDED, MADE)], worker="w.1", stamp=BatchStamp("b", 1, "idle"))


def test_a_stage_whose_submit_the_store_has_lost_is_submitted_again(
    redis_url: str, store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: the pipeline failed with `stage_lost`, although its own job had been accepted and was still there.
    monkeypatch.setattr(drive, "_LOOK_S", 0.05)
    batch = claimed(store)
    stage = stage_job(batch.jobs[0].id, STAGE)

    async def driven() -> Driven:
        gateway = AsyncStore(redis_url)
        await gateway.start()
        services = DriveServices(gateway, Joiner(LocalBlobs(tmp_path)), StageModels(gateway), 65_536)
        running = asyncio.create_task(Drive(PipelineSpec((STAGE,)), batch, services, lambda *_: None).run())
        try:
            await asyncio.to_thread(meddle)
            return await running
        finally:
            running.cancel()
            await gateway.close()

    def meddle() -> None:
        eventually(lambda: store.read(stage) is not None)
        lose(redis_url)
        eventually(lambda: store.read(stage) is not None)
        end(store, stage)

    found = asyncio.run(driven())
    assert (found.state, found.output) == (JobState.SUCCEEDED, MADE)


NOBODY = PipelineStage("only", "nobody")
JOINED = PipelineStage("only", "model", input={"x": "input"})
LOST = Payload("application/json", blob="1".zfill(26) + ".in")


@pytest.mark.parametrize(("stage", "given", "code"), [(NOBODY, GIVEN, "load_failed"), (JOINED, LOST, "input_missing")])
def test_a_model_or_a_blob_that_is_not_there_does_not_blame_the_caller(
    redis_url: str, store: RedisStore, tmp_path: Path, stage: PipelineStage, given: Payload, code: str
) -> None:
    # Regression: these ended as `not_found` and `gone`, which are codes of a caller's errors.
    batch = claimed(store, given)

    async def driven() -> Driven:
        gateway = AsyncStore(redis_url)
        await gateway.start()
        services = DriveServices(gateway, Joiner(LocalBlobs(tmp_path)), StageModels(gateway), 65_536)
        try:
            return await Drive(PipelineSpec((stage,)), batch, services, lambda *_: None).run()
        finally:
            await gateway.close()

    found = asyncio.run(driven())
    assert (found.state, found.code) == (JobState.FAILED, code)


def test_a_pipeline_takes_what_the_version_takes_that_an_operator_switched_to(
    redis_url: str, store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Regression: gateways checked a pipeline's input by the version that was the default when its worker started.
    monkeypatch.setattr(executor, "_DESCRIBE_S", 0.05)
    versions: dict[str, VersionInfo | None] = {
        name: VersionInfo(input_schema={"type": kind}, accepts=("*/*",)) for name, kind in KINDS.items()
    }
    store.announce_model(ModelInfo("model", "1", versions=versions))
    spec, blobs = PipelineSpec((STAGE,)), LocalBlobs(tmp_path)
    one = PipelineExecutor(
        "chain", spec, open_store=lambda: AsyncStore(redis_url), blobs=blobs, inline_bytes=1, on_event=lambda: None
    )
    one.start()
    try:
        assert eventually(lambda: schemas(one)) == [{"type": "integer"}]
        assert store.swap_rollout("model", StoredRollout(), Rollout().switch("2"))
        assert eventually(lambda: schemas(one)[1:]) == [{"type": "string"}]
    finally:
        one.stop()


def test_stages_of_jobs_that_ended_undriven_are_cancelled_however_many_jobs_came_since(
    redis_url: str, store: RedisStore
) -> None:
    # Regression: only the newest 256 jobs were looked at, and the stages of older ones ran on.
    batch = claimed(store)
    first = batch.jobs[0].id
    stage = stage_job(first, STAGE)
    store.submit([NewJob(stage, "1", GIVEN)])
    store.run(begin_drive(first))
    give_back = [GiveBack(first, batch.jobs[0].token)]
    store.release(give_back, worker="w.0", reason=ReleaseReason.DRAIN)
    later = [new_job_id("chain") for _ in range(600)]
    store.submit([NewJob(id, "1", GIVEN) for id in later])

    async def looked(*, cancel: JobId | None = None) -> None:
        gateway = AsyncStore(redis_url)
        await gateway.start()
        leftovers = Leftovers(gateway, "chain", lambda id: [stage_job(id, STAGE)])
        try:
            await leftovers.look()
            if cancel is not None:
                await asyncio.to_thread(store.cancel, cancel)
                await leftovers.look()
        finally:
            await gateway.close()

    # A look that is the first one, and one after another that saw the job while it was open.
    other = stage_job(later[0], STAGE)
    store.submit([NewJob(other, "1", GIVEN)])
    store.run(begin_drive(later[0]))
    store.cancel(first)
    asyncio.run(looked(cancel=later[0]))
    states = [found.state for id in (stage, other) if (found := store.read(id)) is not None]
    assert states == [JobState.CANCELLED, JobState.CANCELLED]
    assert store.read(later[1]) is not None


def test_pipelines_of_several_workers_that_are_stages_of_each_other_are_refused(redis_url: str, store: RedisStore) -> None:
    # Regression: each drove the other, job within job, until a queue was full or the deadline passed.
    def pipeline(name: str, model: str) -> ModelInfo:
        return ModelInfo(name, versions={"1": VersionInfo(stages=announced([PipelineStage("only", model)]))})

    for info in (pipeline("one", "two"), pipeline("two", "three"), pipeline("three", "one"), pipeline("four", "model")):
        store.announce_model(info)

    async def found(model: str) -> str:
        gateway = AsyncStore(redis_url)
        await gateway.start()
        try:
            return (await StageModels(gateway).find(PipelineStage("only", model))).version
        finally:
            await gateway.close()

    assert asyncio.run(found("four")) == "1"
    with pytest.raises(StageUnusable, match="pipelines two, three, one: each is a stage of itself by way of the others"):
        asyncio.run(found("two"))


def schemas(one: PipelineExecutor) -> list[object]:
    return [event.info.input_schema for event in one.events if isinstance(event, PipelineKnown)]
