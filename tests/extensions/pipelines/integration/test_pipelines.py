"""Pipelines in a real worker on a real store: what follows what, how they end, and what outlives what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.contract import CancelStatus
from penstock.broker.records import NewJob
from penstock.extensions.pipelines.spec import PipelineStage, announced_stages, stage_job
from penstock.job import Job, JobId, JobState, Payload, Priority, new_job_id
from penstock.model_spec import VersionInfo
from tests.eventually import eventually
from tests.extensions.pipelines.integration.pipeline_stack import MODELS, PIPELINES, notes
from tests.integration.worker_process import JobClient, WorkerProcess

FIRST, SECOND, THIRD = (PipelineStage(name, model) for name, model in (("first", "a"), ("second", "b"), ("third", "c")))


@pytest.fixture(scope="module")
def blobs(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBlobs]:
    """The payloads of a worker that runs all models and pipelines."""
    folder = tmp_path_factory.mktemp("w")
    with WorkerProcess(redis_url, folder, MODELS, pipelines=PIPELINES, beat_s=0.2) as worker:
        worker.await_ready()
        yield LocalBlobs(folder / "state" / "blobs")


class Callers:
    """One client per pipeline."""

    def __init__(self, url: str) -> None:
        self._clients = {name: JobClient(url, name) for name in PIPELINES}
        self.store = self["chain"].store

    def __getitem__(self, pipeline: str) -> JobClient:
        return self._clients[pipeline]

    def run(self, pipeline: str, value: Any) -> tuple[Job, Any]:
        [id] = self[pipeline].submit(value)
        [job] = self[pipeline].await_final([id])
        return job, self[pipeline].output(id) if job.state is JobState.SUCCEEDED else None

    def find(self, job: JobId, stage: PipelineStage) -> Job | None:
        return self.store.read(stage_job(job, stage))

    def stage(self, job: JobId, stage: PipelineStage) -> Job:
        found = self.find(job, stage)
        assert found is not None
        return found

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture
def callers(blobs: LocalBlobs, redis_url: str) -> Iterator[Callers]:
    with closing(Callers(redis_url)) as made:
        yield made


@pytest.fixture(autouse=True)
def opened(tmp_path: Path) -> Iterator[None]:
    """No test leaves a model held."""
    yield
    (tmp_path / "gate").touch()


def held(path: Path, stage: str) -> dict[str, str]:
    """The input of a job that this stage's model holds until the file `gate` is there."""
    return {"until": str(path / "gate"), "hold": stage, "notes": str(path / "notes")}


def begun(callers: Callers, job: JobId, stage: PipelineStage) -> bool:
    found = callers.find(job, stage)
    return found is not None and found.state is JobState.LEASED


def test_stages_follow_one_another_and_the_last_output_is_the_result(callers: Callers) -> None:
    job, output = callers.run("chain", {"n": 1})
    assert output == {"n": 4, "trail": ["a", "b", "c"]}
    assert (job.attempts, job.progress and job.progress.fraction) == (1, 1.0)


def test_branches_are_joined_by_the_names_of_their_stages_in_the_order_in_which_they_are_named(callers: Callers) -> None:
    _, output = callers.run("fork", {"n": 1})
    assert list(output["got"]) == ["right", "left"]
    assert {name: got["trail"] for name, got in output["got"].items()} == {"left": ["a"], "right": ["b"]}


def test_fields_are_taken_from_any_stage_and_from_the_input(callers: Callers) -> None:
    _, output = callers.run("fields", {"n": 5, "box": {"x": [7, 8]}})
    assert output == {"made": {"got": {"corner": 8, "sum": 6}}, "given": {"x": [7, 8]}}


def test_a_pipeline_may_be_a_stage(callers: Callers) -> None:
    _, output = callers.run("nested", {"n": 0})
    assert output == {"n": 4, "trail": ["a", "b", "c", "a"]}


def test_a_failure_names_its_stage_and_has_its_code_and_ends_the_rest(callers: Callers, tmp_path: Path) -> None:
    [id] = callers["chain"].submit({"fail": "b", "notes": str(tmp_path / "notes"), "tag": "x"})
    [job] = callers["chain"].await_final([id])
    assert job.state is JobState.FAILED
    assert job.error is not None
    assert (job.error.code, job.error.message) == ("told_to", "stage 'second' (model b): b was told to fail")
    assert callers.find(id, THIRD) is None
    assert notes(tmp_path / "notes") == {"a x": 1, "b x": 1}


def test_a_failed_branch_cancels_the_branches_beside_it(callers: Callers, tmp_path: Path) -> None:
    [id] = callers["fork"].submit({"fail": "b", **held(tmp_path, "a")})
    [job] = callers["fork"].await_final([id])
    assert (job.state, job.error and job.error.code) == (JobState.FAILED, "told_to")
    left = PipelineStage("left", "a")
    assert callers.stage(id, left).cancel_requested
    (tmp_path / "gate").touch()
    eventually(lambda: callers.stage(id, left).state is JobState.CANCELLED)


def test_a_cancel_ends_the_stage_that_runs_and_begins_no_other(callers: Callers, tmp_path: Path) -> None:
    [id] = callers["chain"].submit({"tag": "x", **held(tmp_path, "b")})
    eventually(lambda: begun(callers, id, SECOND))
    assert callers.store.cancel(id) is CancelStatus.REQUESTED
    [job] = callers["chain"].await_final([id])
    assert (job.state, callers.find(id, THIRD)) == (JobState.CANCELLED, None)
    (tmp_path / "gate").touch()
    eventually(lambda: callers.stage(id, SECOND).state is JobState.CANCELLED)


def test_a_pipeline_whose_stage_is_cancelled_fails_with_the_name_of_the_stage(callers: Callers, tmp_path: Path) -> None:
    [id] = callers["chain"].submit(held(tmp_path, "b"))
    eventually(lambda: begun(callers, id, SECOND))
    callers.store.cancel(stage_job(id, SECOND))
    (tmp_path / "gate").touch()
    [job] = callers["chain"].await_final([id])
    assert (job.state, job.error and job.error.code) == (JobState.FAILED, "stage_cancelled")
    assert "'second'" in (job.error.message if job.error else "")


def test_the_deadline_is_that_of_the_whole(callers: Callers, tmp_path: Path) -> None:
    [id] = callers["chain"].submit(held(tmp_path, "b"), deadline_s=1.0)
    [job] = callers["chain"].await_final([id])
    assert job.state is JobState.EXPIRED
    second = callers.stage(id, SECOND)
    assert second.deadline_at == pytest.approx(job.deadline_at, abs=0.1)
    (tmp_path / "gate").touch()
    eventually(lambda: callers.stage(id, SECOND).state.final)
    assert callers.find(id, THIRD) is None


def test_stages_have_the_owner_the_priority_and_the_trace_of_the_whole(callers: Callers) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = NewJob(new_job_id("chain"), "1", Payload("application/json", b"{}"), Priority.BULK, owner="sue", trace=trace)
    callers.store.submit([replace(job, max_open_jobs=1)])
    callers["chain"].await_final([job.id])
    third = callers.stage(job.id, THIRD)
    assert (third.owner, third.priority, third.trace) == ("sue", Priority.BULK, trace)


def test_a_stage_that_is_tried_again_is_the_affair_of_its_model(callers: Callers, tmp_path: Path) -> None:
    [id] = callers["chain"].submit({"kill": "b", "once": str(tmp_path / "once")})
    [job] = callers["chain"].await_final([id])
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)
    second = callers.stage(id, SECOND)
    assert (second.crashes, second.attempts) == (1, 2)


def test_large_outputs_are_passed_by_reference_and_live_as_long_as_somebody_needs_them(
    callers: Callers, blobs: LocalBlobs
) -> None:
    """Both stages that read the block succeed, though the first to end would delete an input of its own."""
    [id] = callers["blocks"].submit({"bytes": 3_000_000, "byte": 9})
    [job] = callers["blocks"].await_final([id])
    assert job.state is JobState.SUCCEEDED, job.error
    assert callers["blocks"].output(id) == {"left": {"bytes": 3_000_000, "first": 9}, "right": {"bytes": 3_000_000, "first": 9}}
    made = callers.store.result(stage_job(id, PipelineStage("make", "grow")))
    assert made is not None
    assert made[1] is not None
    left = callers.store.input(stage_job(id, PipelineStage("left", "measure")))
    assert left is not None
    assert left.payload.blob == made[1].blob
    eventually(lambda: blobs.readable([left.payload.blob]) == [None])


def test_a_large_result_is_that_of_the_last_stage_and_is_not_copied(callers: Callers, blobs: LocalBlobs) -> None:
    [id] = callers["block"].submit({"bytes": 300_000})
    [job] = callers["block"].await_final([id])
    assert job.state is JobState.SUCCEEDED, job.error
    last, own = callers.store.result(stage_job(id, PipelineStage("make", "grow"))), callers.store.result(id)
    assert last is not None
    assert own is not None
    assert own[1] == last[1]
    assert own[1] is not None
    assert blobs.get(own[1].blob) == bytes([7]) * 300_000


def test_a_large_input_is_kept_until_the_whole_has_ended_and_after_a_failure(callers: Callers, blobs: LocalBlobs) -> None:
    name = new_job_id("chain")
    [blob] = blobs.append_all([(f"{name.serial}.in", json.dumps({"fail": "c", "pad": "x" * 100_000}).encode())])
    callers.store.submit([NewJob(name, "1", Payload("application/json", blob=blob))])
    [job] = callers["chain"].await_final([name])
    assert (job.state, job.error and job.error.code) == (JobState.FAILED, "told_to")
    assert blobs.get(blob)


def test_a_stage_whose_queue_is_full_waits_and_none_is_lost(callers: Callers, tmp_path: Path) -> None:
    """The queue of `narrow` takes two jobs."""
    ids = callers["squeeze"].submit(*(held(tmp_path, "narrow") for _ in range(12)))
    # One says so first, and the others follow.
    eventually(lambda: sum("is full" in _note(callers, id) for id in ids) > 1)
    (tmp_path / "gate").touch()
    assert {job.state for job in callers["squeeze"].await_final(ids)} == {JobState.SUCCEEDED}


def _note(callers: Callers, id: JobId) -> str:
    job = callers.store.read(id)
    return job.progress.note if job is not None and job.progress is not None else ""


def test_five_hundred_pipelines_are_open_at_once_and_each_runs_its_stages_once(callers: Callers, tmp_path: Path) -> None:
    gate = held(tmp_path, "c")
    ids = callers["chain"].submit(*({"tag": tag, **gate} for tag in range(500)))
    eventually(lambda: callers.store.stats("chain").leased == 500, timeout_s=60.0)
    eventually(lambda: all(callers.find(id, THIRD) is not None for id in ids[-5:]), timeout_s=60.0)
    (tmp_path / "gate").touch()
    assert {job.state for job in callers["chain"].await_final(ids, timeout_s=90.0)} == {JobState.SUCCEEDED}
    ran = notes(tmp_path / "notes")
    assert ran == {f"{model} {tag}": 1 for model in "abc" for tag in range(500)}


def test_callers_are_told_what_the_first_stage_takes_and_which_stages_there_are(callers: Callers) -> None:
    infos = {info.name: info for info in callers.store.models()}
    chain = infos["chain"].versions["1"] or VersionInfo()
    first = infos["a"].versions["1"] or VersionInfo()
    assert chain.accepts == first.accepts
    assert [stage.name for stage in announced_stages(chain)] == ["first", "second", "third"]
    assert chain.description == "first (a) → second (b) → third (c)"
