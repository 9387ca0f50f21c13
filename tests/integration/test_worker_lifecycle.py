"""How a worker begins and ends: killed, drained, hurried, frozen, cut off. The processes and the store are real."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.server.embedded import EmbeddedServer
from penstock.broker.store.sync import RedisStore
from penstock.job import JobId, JobState
from penstock.model_spec import WarmOrigin
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, JobClient, WorkerProcess

MODEL = "faulty"
# Short leases keep the tests short, because all other times follow from the lease.
QUICK = {"lease_s": 3.0, "beat_s": 0.5, "sweep_s": 0.5}


@pytest.fixture
def client(fresh_redis: str) -> Iterator[JobClient]:
    with closing(JobClient(fresh_redis, MODEL)) as client:
        yield client


def worker(url: str, folder: Path, *, settings: dict[str, Any] | None = None, **table: Any) -> WorkerProcess:
    return WorkerProcess(url, folder, {MODEL: {"source": f"{FAULTY}:Faulty", **table}}, **(settings or QUICK))


# The handler notes on disk that a job began, and in whose child: on a busy machine a job is leased long before it begins.
MARKING = """
import os, pathlib, time
import penstock

class Marking(penstock.Handler):
    def inference(self, batch):
        for order in batch:
            pathlib.Path(order["folder"], f"begun-{os.getppid()}").touch()
            time.sleep(order["seconds"])
        return batch
"""


def marking(folder: Path) -> str:
    handler = folder / "marking.py"
    handler.write_text(MARKING)
    return str(handler)


def await_begun(process: WorkerProcess, folder: Path) -> None:
    eventually((folder / f"begun-{process.process.pid}").exists)


def await_running(client: JobClient, id: JobId) -> None:
    eventually(lambda: client.job(id).state is JobState.LEASED)


def test_the_jobs_of_a_killed_worker_finish_on_another_before_its_lease_is_over(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    # The sweeper must find the dead worker by its absence, in two seconds; the lease ends only ten seconds later.
    settings = {"lease_s": 12.0, "beat_s": 2.0, "sweep_s": 1.0}
    table = {"source": marking(tmp_path), "max_batch_size": 1}
    with worker(fresh_redis, tmp_path / "a", settings=settings, **table) as first:
        first.await_ready()
        with worker(fresh_redis, tmp_path / "b", settings=settings, **table) as second:
            second.await_ready()
            await_trust(settings["lease_s"])
            # A slot holds two jobs at most, so the first worker has at least one of the three.
            ids = client.submit(*[{"folder": str(tmp_path), "seconds": 0.3}] * 3)
            await_begun(first, tmp_path)
            first.kill()
            killed_at = time.monotonic()
            jobs = client.await_final(ids)
            assert time.monotonic() - killed_at < settings["lease_s"] - settings["beat_s"]
    assert [job.state for job in jobs] == [JobState.SUCCEEDED] * 3
    assert max(job.attempts for job in jobs) == 2


def await_trust(lease_s: float) -> None:
    """Wait until the sweeper judges by presence. A young one does not, because after a Redis restart no worker is present."""
    begun_at = time.monotonic()
    eventually(lambda: time.monotonic() - begun_at > lease_s * 2 / 3 + 1.0)


def test_sigterm_lets_the_running_batch_end_and_leaves_the_rest_queued(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    with worker(fresh_redis, tmp_path / "w", source=marking(tmp_path), max_batch_size=1) as process:
        process.await_ready()
        ids = client.submit(*[{"folder": str(tmp_path), "seconds": 3.0}] * 3)
        # A job that is leased but has not begun goes back too, which once failed on a busy machine.
        await_begun(process, tmp_path)
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=30.0) == 0
    jobs = [client.job(id) for id in ids]
    assert sorted(job.state.value for job in jobs) == ["queued", "queued", "succeeded"]
    assert [job.crashes for job in jobs] == [0, 0, 0]
    assert client.store.workers() == []


def test_a_batch_that_outlasts_the_grace_goes_back_without_being_charged(
    client: JobClient, fresh_redis: str, tmp_path: Path
) -> None:
    with worker(fresh_redis, tmp_path, settings={**QUICK, "grace_s": 0.5}) as process:
        process.await_ready()
        [id] = client.submit({"do": "sleep", "seconds": 60, "tag": 1})
        await_running(client, id)
        process.send(signal.SIGTERM)
        assert process.exit_code(within_s=30.0) == 0
    assert (client.job(id).state, client.job(id).attempts, client.job(id).crashes) == (JobState.QUEUED, 0, 0)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT])
def test_a_second_signal_does_not_wait_for_what_runs(
    client: JobClient, fresh_redis: str, tmp_path: Path, second: signal.Signals
) -> None:
    with worker(fresh_redis, tmp_path) as process:
        process.await_ready()
        [id] = client.submit({"do": "sleep", "seconds": 60, "tag": 1})
        await_running(client, id)
        process.send(signal.SIGTERM)
        eventually(lambda: not client.store.workers())
        process.send(second)
        # The grace is 30 s, so an exit within 20 s is due to the second signal.
        process.exit_code(within_s=20.0)
    assert (client.job(id).state, client.job(id).attempts) == (JobState.QUEUED, 0)


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


def test_a_frozen_worker_that_wakes_up_publishes_nothing(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    other = worker(fresh_redis, tmp_path / "b")
    with worker(fresh_redis, tmp_path / "a") as frozen, closing_process(other):
        frozen.await_ready()
        [id] = client.submit({"do": "sleep", "seconds": 3.0, "tag": "once"})
        await_running(client, id)
        frozen.send(signal.SIGSTOP)
        other.start()
        [job] = client.await_final([id])
        assert job.attempts == 2, "it ended before the worker was frozen"
        frozen.send(signal.SIGCONT)
        eventually(lambda: told_it_lost(frozen))
        assert client.job(id) == job
        # The worker goes on under a new name.
        [after] = client.await_final(client.submit({"do": "echo", "tag": 1}))
    assert (job.state, job.attempts, after.state) == (JobState.SUCCEEDED, 2, JobState.SUCCEEDED)


def test_a_worker_survives_a_restart_of_its_store_and_settles_what_it_ran(tmp_path: Path, state_dir: Path) -> None:
    server = EmbeddedServer(state_dir)
    server.start()
    with closing(JobClient(server.url, MODEL)) as client, worker(server.url, tmp_path / "w") as process:
        process.await_ready()
        [id] = client.submit({"do": "sleep", "seconds": 1.0, "tag": "kept"})
        await_running(client, id)
        server.stop()
        eventually(lambda: process.events("store_away"))
        with server:
            [job] = client.await_final([id])
            [after] = client.await_final(client.submit({"do": "echo", "tag": 1}))
            assert process.process.poll() is None
    assert (job.state, after.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)


def test_the_child_knows_neither_the_store_nor_any_setting(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path) as process:
        process.await_ready()
        [slot] = [slot for found in client.store.workers() for slot in found.slots]
        environment = Path(f"/proc/{slot.pid}/environ").read_bytes()
        command = Path(f"/proc/{slot.pid}/cmdline").read_bytes()
        sockets = [entry.readlink().name for entry in Path(f"/proc/{slot.pid}/fd").iterdir()]
    assert b"PENSTOCK" not in environment
    assert b"redis" not in environment.lower()
    assert b"unix:" not in environment + command
    assert sum(name.startswith("socket:") for name in sockets) == 1


def test_a_child_ends_with_its_worker_however_that_ends(client: JobClient, fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path) as process:
        process.await_ready()
        [slot] = [slot for found in client.store.workers() for slot in found.slots]
        process.process.kill()
        eventually(lambda: not Path(f"/proc/{slot.pid}").exists())


TYPED = """
import time
import penstock

@penstock.model(max_batch_size=4)
def typed(x: int) -> int:
    time.sleep(0.02)
    return x
"""


def test_a_worker_warms_every_size_before_it_is_ready_and_tells_what_the_first_call_cost(
    fresh_redis: str, tmp_path: Path
) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    models = {MODEL: {"source": str(tmp_path / "typed.py")}}
    with WorkerProcess(fresh_redis, tmp_path, models, None, **QUICK) as process, closing(RedisStore(fresh_redis)) as store:
        process.await_ready()
        (slot,) = store.workers()[0].slots
    assert slot.warm_origin is WarmOrigin.SCHEMA
    assert sorted(slot.first_call_s) == [1, 2, 4]
    assert slot.first_call_s[4] >= 4 * 0.02
    # Generated inputs may be cheaper than real ones, so the worker learns nothing from them.
    assert slot.latency_s == {}


def test_a_worker_that_shares_its_cores_with_others_leaves_them_to_the_system(fresh_redis: str, tmp_path: Path) -> None:
    with worker(fresh_redis, tmp_path, settings={**QUICK, "pinning": "none"}, threads=1) as unpinned:
        unpinned.await_ready()
        with closing(RedisStore(fresh_redis)) as store:
            [slot] = store.workers()[0].slots
        allowed = Path(f"/proc/{slot.pid}/status").read_text().partition("Cpus_allowed_list:")[2].split()[0]
        mine = Path("/proc/self/status").read_text().partition("Cpus_allowed_list:")[2].split()[0]
    assert (slot.cores, allowed) == ((), mine)
