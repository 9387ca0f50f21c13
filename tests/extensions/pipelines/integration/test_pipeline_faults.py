"""Executors of pipelines that die, freeze or are stopped: no stage runs twice, and none is lost. The models run elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.extensions.pipelines.spec import PipelineStage, stage_job
from penstock.job import Job, JobId, JobState
from tests.eventually import eventually
from tests.extensions.pipelines.integration.pipeline_stack import MODELS, chain, notes
from tests.integration.worker_process import JobClient, WorkerProcess

STAGES = [PipelineStage(name, model) for name, model in (("first", "a"), ("second", "b"), ("third", "c"))]
QUICK: dict[str, Any] = {"beat_s": 0.2, "lease_s": 2.0}
CHAIN = chain(elsewhere=["a", "b", "c"])
CHAINS = {"chain": CHAIN}


@pytest.fixture(scope="module")
def models(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    tables = {name: MODELS[name] for name in ("a", "b", "c")}
    with WorkerProcess(redis_url, tmp_path_factory.mktemp("models"), tables, beat_s=0.2) as made:
        made.await_ready()
        yield made


@pytest.fixture
def jobs(models: WorkerProcess, redis_url: str, tmp_path: Path) -> Iterator[JobClient]:
    with closing(JobClient(redis_url, "chain")) as client:
        yield client
    (tmp_path / "gate").touch()


class Executors:
    """Workers that only drive pipelines, each with a fault of its own."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url, self._folder = url, folder
        self._made: list[WorkerProcess] = []

    def start(self, fault: str = "", *, is_ready: bool = True) -> WorkerProcess:
        folder = self._folder / f"driver-{len(self._made)}"
        made = WorkerProcess(self._url, folder, {}, {"PENSTOCK_FAULT": fault} if fault else {}, pipelines=CHAINS, **QUICK)
        made.start()
        self._made.append(made)
        if is_ready:
            made.await_ready()
        return made

    def close(self) -> None:
        for made in self._made:
            made.kill()


@pytest.fixture
def executors(redis_url: str, tmp_path: Path) -> Iterator[Executors]:
    with closing(Executors(redis_url, tmp_path)) as made:
        yield made


def order(path: Path, **more: object) -> dict[str, object]:
    return {"notes": str(path / "notes"), "until": str(path / "gate"), "hold": "none", **more}


def ran_once(path: Path, *tags: object) -> bool:
    return notes(path / "notes") == {f"{model} {tag}": 1 for model in "abc" for tag in tags}


class Killed(NamedTuple):
    """What became of an executor that was told to die, and of its only job, whose stages are noted in a file."""

    exit_code: int
    job: Job
    output: Any
    notes: Path


def stage_of(jobs: JobClient, id: JobId, place: int) -> str:
    found = jobs.store.read(stage_job(id, STAGES[place]))
    return found.state.value if found is not None else ""


LAST_SUBMIT = "after_stage_submit:kill:3"
SITES = [
    "after_claim:kill",
    *(f"before_stage_submit:kill:{nth}" for nth in (1, 2)),
    "after_stage_submit:kill:1",
    LAST_SUBMIT,
    *(f"after_stage_end:kill:{nth}" for nth in (1, 3)),
    "before_stages_end:kill",
    "after_finish_before_reply:kill",
]


@pytest.fixture(scope="module")
def killed(models: WorkerProcess, redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Killed]]:
    """One executor per site, each with a pipeline of its own, dies there at the same time; then one more has them all."""
    folder = tmp_path_factory.mktemp("killed")
    names = {site: f"chain{number}" for number, site in enumerate(SITES)}
    with ExitStack() as opened:
        clients = {site: opened.enter_context(closing(JobClient(redis_url, name))) for site, name in names.items()}
        dying = {}
        for site, name in names.items():
            worker = WorkerProcess(redis_url, folder / name, {}, {"PENSTOCK_FAULT": site}, pipelines={name: CHAIN}, **QUICK)
            dying[site] = opened.enter_context(worker)
        for worker in dying.values():
            worker.await_ready()
        files = {site: folder / name / "notes" for site, name in names.items()}
        # Regression: the end of the last stage was pushed before the answer to its submit came. A pipeline that is over waits
        # for no answer, so the executor lived on. The gate holds that stage, and what waits behind it, until the executor died.
        gate = folder / "gate"
        held = {LAST_SUBMIT: {"until": str(gate), "hold": "c"}}
        orders = {site: {"notes": str(files[site]), "tag": "x", **held.get(site, {})} for site in SITES}
        jobs = {site: client.submit(orders[site])[0] for site, client in clients.items()}
        dying[LAST_SUBMIT].exit_code(within_s=30.0)
        gate.touch()
        codes = {site: worker.exit_code(within_s=30.0) for site, worker in dying.items()}
        every = dict.fromkeys(names.values(), CHAIN)
        opened.enter_context(WorkerProcess(redis_url, folder / "next", {}, pipelines=every, **QUICK))
        ended = {site: client.await_final([jobs[site]])[0] for site, client in clients.items()}
        yield {
            site: Killed(codes[site], ended[site], client.output(jobs[site]), files[site]) for site, client in clients.items()
        }


@pytest.mark.parametrize("site", SITES)
def test_an_executor_that_is_killed_at_any_step_loses_no_stage_and_the_next_repeats_none(
    site: str, killed: dict[str, Killed]
) -> None:
    found = killed[site]
    assert found.exit_code == -signal.SIGKILL
    assert found.job.state is JobState.SUCCEEDED, found.job.error
    assert found.output["trail"] == ["a", "b", "c"]
    assert notes(found.notes) == {f"{model} x": 1 for model in "abc"}


def test_an_executor_that_freezes_beyond_its_lease_is_replaced_and_its_end_is_not_taken(
    executors: Executors, jobs: JobClient, tmp_path: Path
) -> None:
    frozen = executors.start("after_stage_end:stop")
    ids = jobs.submit(*(order(tmp_path, tag=tag) for tag in range(3)))
    eventually(lambda: stage_of(jobs, ids[0], 0) == "succeeded")
    executors.start()
    assert {job.state for job in jobs.await_final(ids)} == {JobState.SUCCEEDED}
    frozen.send(signal.SIGCONT)
    [last] = jobs.submit(order(tmp_path, tag="last"))
    jobs.await_final([last])
    assert ran_once(tmp_path, 0, 1, 2, "last")
    assert all(jobs.job(id).attempts <= 2 for id in ids)


def test_an_executor_that_is_told_to_stop_hands_its_jobs_on_at_once(
    executors: Executors, jobs: JobClient, tmp_path: Path
) -> None:
    leaving = executors.start()
    ids = jobs.submit(*(order(tmp_path, tag=tag, hold="b") for tag in range(20)))
    # Of those that wait for the model, any may have come first.
    eventually(lambda: any(stage_of(jobs, id, 1) == "leased" for id in ids))
    leaving.send(signal.SIGTERM)
    assert leaving.exit_code(within_s=20.0) == 0
    assert set(jobs.states(ids)) == {"queued"}
    executors.start()
    (tmp_path / "gate").touch()
    ended = jobs.await_final(ids)
    assert {(job.state, job.attempts) for job in ended} == {(JobState.SUCCEEDED, 1)}
    assert ran_once(tmp_path, *range(20))


def test_the_stages_of_a_job_that_is_cancelled_while_nobody_drives_it_are_cancelled_by_the_next_driver(
    executors: Executors, jobs: JobClient, tmp_path: Path
) -> None:
    dying = executors.start("after_stage_submit:kill:2")
    [id] = jobs.submit(order(tmp_path, tag="x", hold="b"))
    assert dying.exit_code(within_s=30.0) == -signal.SIGKILL
    eventually(lambda: jobs.states([id]) == ["queued"])
    jobs.store.cancel(id)
    assert jobs.states([id]) == ["cancelled"]
    executors.start()
    eventually(lambda: jobs.job(stage_job(id, STAGES[1])).cancel_requested)
    (tmp_path / "gate").touch()
    eventually(lambda: stage_of(jobs, id, 1) == "cancelled")
    assert stage_of(jobs, id, 2) == ""


def test_a_store_that_is_away_for_a_while_costs_no_stage(executors: Executors, jobs: JobClient, tmp_path: Path) -> None:
    """The executor's own links are cut, again and again, while the stages run."""
    executors.start()
    ids = jobs.submit(*(order(tmp_path, tag=tag) for tag in range(30)))
    cut = jobs.store._redis
    for _ in range(20):
        for one in cut.client_list():
            if one["name"] in ("penstock-gateway", "penstock-pushes"):
                cut.client_kill_filter(_id=one["id"])
        time.sleep(0.05)
    assert {job.state for job in jobs.await_final(ids)} == {JobState.SUCCEEDED}
    assert ran_once(tmp_path, *range(30))


def test_an_executor_whose_subscription_breaks_begins_others_while_one_is_held(
    executors: Executors, jobs: JobClient, tmp_path: Path
) -> None:
    # Regression: it claimed no further job until the last of those that it drove had ended, maybe hours later.
    executor = executors.start()
    [long] = jobs.submit(order(tmp_path, tag="long", hold="b"))
    eventually(lambda: stage_of(jobs, long, 1) == "leased")
    server = jobs.store._redis
    own = [
        one["id"]
        for one in server.client_list()
        if one["name"].startswith("penstock-wake-") and f"-{executor.process.pid}-" in one["name"]
    ]
    assert own
    for id in own:
        server.client_kill_filter(_id=id)
    [further] = jobs.submit(order(tmp_path, tag="further"))
    eventually(lambda: stage_of(jobs, further, 0) == "succeeded")
    (tmp_path / "gate").touch()
    assert {job.state for job in jobs.await_final([long, further])} == {JobState.SUCCEEDED}
    assert ran_once(tmp_path, "long", "further")


def test_a_pipeline_whose_model_nobody_has_says_so_and_begins_once_it_comes(
    redis_url: str, jobs: JobClient, tmp_path: Path
) -> None:
    lone = {"lone": {"stages": [{"name": "only", "model": "late"}], "elsewhere": ["late"]}}
    with WorkerProcess(redis_url, tmp_path / "w", {}, pipelines=lone, **QUICK) as executor:
        error = eventually(lambda: next((s.error for w in jobs.store.workers() for s in w.slots if s.model == "lone"), ""))
        assert error.startswith("stage 'only' needs the model 'late': no gateway or worker has it in its settings")
        with WorkerProcess(redis_url, tmp_path / "late", {"late": MODELS["a"]}, **QUICK) as late:
            late.await_ready()
            executor.await_ready()
            with closing(JobClient(redis_url, "lone")) as client:
                [job] = client.await_final(client.submit({"n": 1}))
                assert job.state is JobState.SUCCEEDED


def test_a_worker_of_a_stage_that_is_killed_costs_the_pipeline_nothing(redis_url: str, jobs: JobClient, tmp_path: Path) -> None:
    """The job of the stage runs again elsewhere, as any job of its model would; the executor only waits."""
    tables = {"late": MODELS["a"]}
    with closing(JobClient(redis_url, "onward")) as onward:
        pipelines = {"onward": {"stages": [{"name": "only", "model": "late"}], "elsewhere": ["late"]}}
        with WorkerProcess(redis_url, tmp_path / "d", {}, pipelines=pipelines, **QUICK):
            with WorkerProcess(redis_url, tmp_path / "w1", tables, **QUICK) as dying:
                dying.await_ready()
                [id] = onward.submit(order(tmp_path, tag="x", hold="late"))
                stage = stage_job(id, PipelineStage("only", "late"))
                eventually(lambda: (found := jobs.store.read(stage)) is not None and found.state is JobState.LEASED)
            assert onward.states([id]) == ["leased"]
            (tmp_path / "gate").touch()
            with WorkerProcess(redis_url, tmp_path / "w2", tables, **QUICK) as next_one:
                next_one.await_ready()
                [job] = onward.await_final([id])
                assert (job.state, job.attempts) == (JobState.SUCCEEDED, 1)
                assert jobs.job(stage).attempts == 2


def test_a_pipeline_that_waits_for_a_full_queue_is_cancelled_or_late_and_its_stage_never_begins(
    redis_url: str, tmp_path: Path
) -> None:
    """The queue of `tight` takes one job, and nobody serves it."""
    tight = {"tight": {**MODELS["a"], "max_queue_depth": 1}}
    pipelines = {"through": {"stages": [{"name": "only", "model": "tight"}], "elsewhere": ["tight"]}}
    with (
        closing(JobClient(redis_url, "through")) as through,
        closing(JobClient(redis_url, "tight")) as full,
        WorkerProcess(redis_url, tmp_path / "w", tight, **QUICK) as once,
    ):
        once.await_ready()
        # Its settings are known from now on; without it the queue stays full.
        with WorkerProcess(redis_url, tmp_path / "d", {}, pipelines=pipelines, **QUICK) as executor:
            executor.await_ready()
            once.kill()
            full.submit({"n": 1})
            unwanted, late = through.submit({"n": 2})[0], through.submit({"n": 3}, deadline_s=1.5)[0]
            waits = "only: waits, as the queue of tight is full"
            eventually(lambda: (progress := through.job(unwanted).progress) is not None and progress.note == waits)
            through.store.cancel(unwanted)
            ended = through.await_final([unwanted, late])
            assert [job.state for job in ended] == [JobState.CANCELLED, JobState.EXPIRED]
            stage = PipelineStage("only", "tight")
            assert [full.store.read(stage_job(id, stage)) for id in (unwanted, late)] == [None, None]


def test_a_stage_waits_at_a_queue_that_is_closed_for_its_version_until_it_is_open(redis_url: str, tmp_path: Path) -> None:
    """As by a worker that was slow to forget a version, which was loaded again before. Nobody else submits to the model."""
    shut = {"shut": MODELS["a"]}
    pipelines = {"by": {"stages": [{"name": "only", "model": "shut"}]}}
    with (
        closing(JobClient(redis_url, "by")) as by,
        WorkerProcess(redis_url, tmp_path / "w", shut, pipelines=pipelines, **QUICK) as worker,
    ):
        worker.await_ready()
        by.store.retire("shut", "1")
        [id] = by.submit({"n": 2})
        waits = "only: waits, as the queue of shut is closed for version 1"
        eventually(lambda: (progress := by.job(id).progress) is not None and progress.note == waits)
        by.store.reopen("shut", "1", by.store.retired("shut")["1"])
        [job] = by.await_final([id])
        assert job.state is JobState.SUCCEEDED
