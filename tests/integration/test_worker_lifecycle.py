"""How a worker begins and ends: killed, drained, hurried, frozen, cut off. The processes and the store are real."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock.broker.store.ops import prefix
from penstock.broker.store.sync import RedisStore
from penstock.embedded.server import EmbeddedServer
from penstock.job import JobId, JobState
from penstock.model_spec import SlotInfo, WarmOrigin
from tests.eventually import eventually
from tests.integration.shard_client import ShardClient
from tests.integration.worker_process import FAULTY, PACED, Gate, JobClient, WorkerProcess

# Short leases keep the tests short, because all other times follow from the lease.
QUICK: dict[str, Any] = {"lease_s": 3.0, "beat_s": 0.5}
# Nothing waits for such a lease, so it ends for no pause of the machine.
LONG: dict[str, Any] = {"lease_s": 600.0, "beat_s": 0.5}
JOBS, SHARDS = "jobs", "shards"
MODELS = {
    JOBS: {"source": f"{PACED}:Paced", "max_batch_size": 1, "warm_up": False},
    SHARDS: {"source": f"{PACED}:Paced", "max_batch_size": 4, "warm_up": False},
}


@pytest.fixture
def jobs(fresh_redis: str) -> Iterator[JobClient]:
    with closing(JobClient(fresh_redis, JOBS)) as client:
        yield client


@pytest.fixture
def shards(fresh_redis: str, tmp_path: Path) -> Iterator[ShardClient]:
    with closing(ShardClient(fresh_redis, SHARDS, tmp_path)) as client:
        yield client


def worker(url: str, folder: Path, **settings: Any) -> WorkerProcess:
    """A worker of both models, beside others that read inputs in the same folder of state."""
    shared = {"PENSTOCK_STORE__STATE_DIR": str(folder.parent / "state")}
    return WorkerProcess(url, folder, MODELS, shared, **settings)


def links(url: str, model: str) -> set[str]:
    """The ids of the connections over which slots of the model listen."""
    with redis.Redis.from_url(url) as client:
        found = [one for one in client.client_list() if one["name"].startswith("penstock-wake-") and int(one["ssub"])]
        channel = f"{prefix(model)}worker:"
        own = {name.decode().removeprefix(channel) for name in client.pubsub_shardchannels(f"{channel}*")}
    return {one["id"] for one in found if one["name"].removeprefix("penstock-wake-") in own}


def break_links(url: str, model: str) -> set[str]:
    lost = links(url, model)
    with redis.Redis.from_url(url) as client:
        for one in lost:
            client.client_kill_filter(_id=one)
    return lost


def states(client: JobClient, ids: Sequence[JobId]) -> list[str]:
    return sorted(client.states(ids))


def test_a_frozen_worker_publishes_nothing_and_goes_on_and_finishes_what_a_killed_one_had(
    jobs: JobClient, shards: ShardClient, fresh_redis: str, tmp_path: Path
) -> None:
    """The first worker is frozen, so that its lease ends and the second takes over; then the second is killed.

    The lease of the second has ten more minutes: the sweeper finds a killed worker by its absence.
    """
    frozen, killed = Gate(tmp_path / "frozen"), Gate(tmp_path / "killed")
    second = worker(fresh_redis, tmp_path / "b", **LONG)
    with worker(fresh_redis, tmp_path / "a", **QUICK) as first, closing_process(second):
        first.await_ready()
        [id] = jobs.submit(frozen.held("once"))
        eventually(lambda: frozen.begun(first))
        first.send(signal.SIGSTOP)
        second.start()
        eventually(lambda: frozen.begun(second))
        frozen.open()
        [job] = jobs.await_final([id])
        # A slot holds two jobs and two shards at most; what the second has now, the frozen worker has not.
        ids = jobs.submit(*[killed.held(tag) for tag in range(3)])
        rows = [shards.submit_shard(killed.slow(30)) for _ in range(5)]
        eventually(lambda: states(jobs, ids).count("leased") == 2 and states(shards, rows).count("leased") == 2)
        eventually(lambda: killed.begun(second) > 1)
        first.send(signal.SIGCONT)
        eventually(lambda: told_it_lost(first))
        assert jobs.job(id) == job
        second.kill()
        killed.open()
        ended = [*jobs.await_final(ids), *shards.await_final(rows)]
        outputs = [shards.outcome(shard).outputs for shard in rows]
    assert (job.state, job.attempts) == (JobState.SUCCEEDED, 2)
    assert {(one.state, one.crashes) for one in ended} == {(JobState.SUCCEEDED, 0)}
    assert max(one.attempts for one in ended) == 2
    assert outputs == [list(range(30))] * 5


def test_sigterm_lets_what_runs_end_and_leaves_the_rest_queued(
    jobs: JobClient, shards: ShardClient, fresh_redis: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    with worker(fresh_redis, tmp_path / "w", **LONG) as process:
        process.await_ready()
        ids = jobs.submit(*[gate.held(tag) for tag in range(3)])
        eventually(lambda: gate.begun(process) == 1)
        rows = [shards.submit_shard(gate.slow(1_000)) for _ in range(2)]
        eventually(lambda: gate.begun(process) > 1)
        # What is leased but has not begun goes back too.
        eventually(lambda: states(jobs, ids).count("leased") == states(shards, rows).count("leased") == 2)
        process.send(signal.SIGTERM)
        eventually(lambda: states(jobs, ids).count("queued") == 2 and states(shards, rows).count("queued") == 1)
        # Regression: a slot that drained did not listen again after its link broke. It looked gone, and its loop never paused.
        lost = break_links(fresh_redis, JOBS)
        eventually(lambda: links(fresh_redis, JOBS) and not lost & links(fresh_redis, JOBS))
        gate.open()
        assert process.exit_code(within_s=30.0) == 0
    assert states(jobs, ids) == ["queued", "queued", "succeeded"]
    assert states(shards, rows) == ["queued", "succeeded"]
    ended = [*map(jobs.job, ids), *map(shards.job, rows)]
    assert [job.crashes for job in ended] == [0] * 5
    assert {job.attempts for job in ended if not job.state.final} == {0}
    assert jobs.store.workers() == []


def test_what_outlasts_the_grace_goes_back_without_being_charged(
    jobs: JobClient, shards: ShardClient, fresh_redis: str, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    with worker(fresh_redis, tmp_path / "w", **LONG, grace_s=0.1) as process:
        process.await_ready()
        [id], shard = jobs.submit(gate.held(1)), shards.submit_shard(gate.slow(1_000))
        eventually(lambda: gate.begun(process) > 1)
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=30.0) == 0
    ended = [jobs.job(id), shards.job(shard)]
    assert [(job.state, job.attempts, job.crashes) for job in ended] == [(JobState.QUEUED, 0, 0)] * 2


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT])
def test_a_second_signal_does_not_wait_for_what_runs(
    jobs: JobClient, fresh_redis: str, tmp_path: Path, second: signal.Signals
) -> None:
    gate = Gate(tmp_path / "gate")
    with WorkerProcess(fresh_redis, tmp_path / "w", {JOBS: MODELS[JOBS]}, None, **LONG) as process:
        process.await_ready()
        [id] = jobs.submit(gate.held(1))
        eventually(lambda: gate.begun(process))
        process.send(signal.SIGTERM)
        eventually(lambda: not jobs.store.workers())
        process.send(second)
        # The grace is 30 s, so an exit within 20 s is due to the second signal.
        process.exit_code(within_s=20.0)
    assert (jobs.job(id).state, jobs.job(id).attempts) == (JobState.QUEUED, 0)


@contextmanager
def closing_process(process: WorkerProcess) -> Iterator[None]:
    """End the process at the end of the block, wherever the process was started."""
    try:
        yield
    finally:
        process.kill()


def told_it_lost(process: WorkerProcess) -> bool:
    """Check that the worker learned of its loss: from the store's answer to its result, or from an earlier beat.

    If a beat comes first, the worker publishes nothing.
    """
    assert process.events("settled_stale") + process.events("lease_lost"), process.log.read_text()
    return True


def test_a_worker_survives_a_restart_of_its_store_and_settles_what_it_ran(tmp_path: Path, state_dir: Path) -> None:
    server, gate = EmbeddedServer(state_dir), Gate(tmp_path / "gate")
    server.start()
    models = {JOBS: MODELS[JOBS]}
    with (
        closing(JobClient(server.url, JOBS)) as client,
        WorkerProcess(server.url, tmp_path / "w", models, None, **QUICK) as process,
    ):
        process.await_ready()
        [id] = client.submit(gate.held("kept"))
        eventually(lambda: gate.begun(process))
        server.stop()
        eventually(lambda: process.events("store_away"))
        gate.open()
        with server:
            [job] = client.await_final([id])
            [after] = client.await_final(client.submit({"tag": 1}))
            assert process.process.poll() is None
    assert (job.state, after.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)


TYPED = """
import time
import penstock

@penstock.model(batch=True, max_batch_size=4)
def typed(batch: list[int]) -> list[int]:
    time.sleep(0.02 * len(batch))
    return batch
"""


@dataclass(frozen=True)
class Seen:
    """What was seen of a worker whose slots share the cores with others, and of its child; then the worker was killed alone."""

    typed: SlotInfo
    plain: SlotInfo
    environment: bytes
    command: bytes
    sockets: int
    allowed: str
    has_left: bool


def looked_at(slots: Sequence[SlotInfo], process: WorkerProcess) -> Seen:
    found = {slot.model: slot for slot in slots}
    child = Path(f"/proc/{found['plain'].pid}")
    facts = (child / "environ").read_bytes(), (child / "cmdline").read_bytes()
    sockets = [entry.readlink().name for entry in (child / "fd").iterdir()]
    allowed = cores_of(child)
    process.process.kill()
    eventually(lambda: not child.exists())
    is_socket = sum(name.startswith("socket:") for name in sockets)
    return Seen(found["typed"], found["plain"], *facts, is_socket, allowed, not child.exists())


def cores_of(process: Path) -> str:
    return (process / "status").read_text().partition("Cpus_allowed_list:")[2].split()[0]


@pytest.fixture(scope="module")
def seen(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("seen")
    (folder / "typed.py").write_text(TYPED)
    models = {"typed": {"source": str(folder / "typed.py")}, "plain": {"source": f"{FAULTY}:Faulty", "threads": 1}}
    with WorkerProcess(redis_url, folder, models, None, pinning="none", **LONG) as process:
        process.await_ready()
        with closing(RedisStore(redis_url)) as store:
            slots = [slot for found in store.workers() for slot in found.slots]
        return looked_at(slots, process)


def test_the_child_knows_neither_the_store_nor_any_setting(seen: Seen) -> None:
    assert b"PENSTOCK" not in seen.environment
    assert b"redis" not in seen.environment.lower()
    assert b"unix:" not in seen.environment + seen.command
    assert seen.sockets == 1


def test_a_child_ends_with_its_worker_however_that_ends(seen: Seen) -> None:
    assert seen.has_left


def test_a_worker_warms_every_size_before_it_is_ready_and_tells_what_the_first_call_cost(seen: Seen) -> None:
    assert seen.typed.warm_origin is WarmOrigin.SCHEMA
    assert sorted(seen.typed.first_call_s) == [1, 2, 4]
    assert seen.typed.first_call_s[4] >= 4 * 0.02
    # Generated inputs may be cheaper than real ones, so the worker learns nothing from them.
    assert seen.typed.latency_s == {}


def test_a_worker_that_shares_its_cores_with_others_leaves_them_to_the_system(seen: Seen) -> None:
    assert (seen.plain.cores, seen.allowed) == ((), cores_of(Path("/proc/self")))
