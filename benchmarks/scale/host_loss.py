"""A host is lost: of two worker hosts, or of two gateway hosts. `host_loss_*`, `gateway_loss_errors`.

A host is a group of processes with a folder of its own. It is lost by SIGKILL to all of them at once, and its folder goes too.
The store, the blobs and the callers are elsewhere. Two gateway hosts share a port, as they share an address behind a balancer.
A host that falls silent without closing its connections is noticed later: by the end of its leases (`worker.lease_s`).
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.scale.drill import DrillResult, DrillSetting
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.store.sync import RedisStore
from penstock.client.handles.job_handle import JobHandle
from penstock.client.sync import Client
from penstock.errors import PenstockError
from penstock.job import parse_job_id
from penstock.loadtest.stack import environment, free_port, log_tail

_ROUNDS = 10
_BEFORE_S, _AFTER_S = 1.5, 2.5
# More than the workers can do, so that each has a batch in its hands at any moment.
_AT_ONCE, _PAUSE_S = 250, 0.05
_CALLERS = 8
_START_S, _END_S = 60.0, 60.0
_GATEWAY = (sys.executable, "-m", "penstock.gateway", "--shared-port")
_WORKER = (sys.executable, "-m", "penstock.cli.main", "worker")


class LostHost:
    """One host: it is started, lost, and started again with an empty folder."""

    def __init__(self, name: str, folder: Path, variables: dict[str, str], command: tuple[str, ...]) -> None:
        self._folder = folder / name
        self.log = folder / f"{name}.log"
        self._env = environment({**variables, "PENSTOCK_STORE__STATE_DIR": str(self._folder)})
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log, cwd=self._folder)

    def lose(self) -> None:
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            for process in [*parent.children(recursive=True), parent]:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def pids(self) -> set[int]:
        """Raises `PenstockError` if it has ended by itself."""
        if self._process is None or self._process.poll() is not None:
            raise PenstockError(f"{self.log.stem} has ended; {log_tail(self.log)}")
        parent = psutil.Process(self._process.pid)
        return {parent.pid, *(process.pid for process in parent.children(recursive=True))}

    def await_listening(self) -> None:
        _await(lambda: bool(self.pids()) and b"gateway_listening" in self.log.read_bytes(), self)

    def await_loaded(self, store: RedisStore) -> None:
        def is_loaded() -> bool:
            pids = self.pids()
            slots = [slot for worker in store.workers() if worker.pid in pids for slot in worker.slots]
            return bool(slots) and all(slot.state == "ready" for slot in slots)

        _await(is_loaded, self)


def _await(check: Callable[[], bool], host: LostHost) -> None:
    give_up_at = time.monotonic() + _START_S
    while not check():
        if time.monotonic() > give_up_at:
            raise PenstockError(f"{host.log.stem} did not get ready within {_START_S:.0f} s; {log_tail(host.log)}")
        time.sleep(0.05)


class Deployment:
    """A store, two gateway hosts on one port and two worker hosts."""

    def __init__(self, folder: Path, plan: StackPlan, store_url: str) -> None:
        self.url, self.store_url = plan.url, store_url
        shared = {
            **stores_environment(plan, store_url),
            "PENSTOCK_STORE__BLOB_DIR": str(folder / "blobs"),
            "PENSTOCK_WORKER__PINNING": "none",
        }
        self.gateways = [LostHost(f"gateway-{name}", folder, shared, _GATEWAY) for name in "ab"]
        self.workers = [LostHost(f"worker-{name}", folder, shared, _WORKER) for name in "ab"]

    @contextmanager
    def running(self) -> Iterator[None]:
        hosts = [*self.gateways, *self.workers]
        try:
            for host in hosts:
                host.start()
            for gateway in self.gateways:
                gateway.await_listening()
            with closing(RedisStore(self.store_url)) as store:
                for worker in self.workers:
                    worker.await_loaded(store)
            yield
        finally:
            for host in hosts:
                with suppress(AssertionError):
                    host.lose()


def measure(setting: DrillSetting) -> DrillResult:
    plan = StackPlan(setting.folder / "stack", free_port())
    workers: list[dict[str, Any]] = []
    gateways: list[dict[str, Any]] = []
    with store_server(plan) as store:
        deployment = Deployment(setting.folder, plan, store.url)
        with deployment.running():
            for number in range(setting.rounds(_ROUNDS)):
                workers.append(lose_a_worker_host(deployment))
                setting.say(f"worker host {number}: {workers[-1]}")
            for number in range(setting.rounds(_ROUNDS)):
                gateways.append(lose_a_gateway_host(deployment))
                setting.say(f"gateway host {number}: {gateways[-1]}")
    held = [each for each in workers if each["held"]]
    if not held:
        raise PenstockError("no worker host held a job when it was lost: nothing had to begin again")
    figures = {
        "host_loss_lost": float(sum(each["lost"] for each in workers)),
        "host_loss_begun_again_s": max(each["begun_again_s"] for each in held),
        "gateway_loss_errors": float(sum(each["errors"] for each in gateways)),
    }
    return DrillResult(figures, {"worker_hosts": workers, "gateway_hosts": gateways})


def lose_a_worker_host(deployment: Deployment) -> dict[str, Any]:
    """`begun_again_s`: from the loss until the last of the jobs that the host held was claimed anew, detection included."""
    jobs: list[JobHandle] = []
    stopping = threading.Event()

    def submit() -> None:
        with Client(deployment.url) as client:
            while not stopping.is_set():
                jobs.extend(client.submit_many("accel", ["x" * 64] * _AT_ONCE))
                time.sleep(_PAUSE_S)

    load = threading.Thread(target=submit)
    load.start()
    time.sleep(_BEFORE_S)
    with closing(RedisStore(deployment.store_url)) as store:
        lost_at = store.now()
        deployment.workers[0].lose()
        time.sleep(_AFTER_S)
        stopping.set()
        load.join()
        ends = _await_ends(deployment.url, jobs)
        tries = [found.tries for job in jobs if (found := store.read(parse_job_id(job.id))) is not None]
        deployment.workers[0].start()
        deployment.workers[0].await_loaded(store)
    again = [each[1].claimed_at - lost_at for each in tries if len(each) > 1]
    return {
        "jobs": len(jobs),
        "lost": len(jobs) - ends["succeeded"],
        "held": len(again),
        "begun_again_s": round(max(again, default=0.0), 3),
    }


def _await_ends(url: str, jobs: Sequence[JobHandle]) -> Counter[str]:
    with Client(url) as client:
        return Counter(job.status for job in client.as_completed([client.job(job.id) for job in jobs], timeout_s=_END_S))


def lose_a_gateway_host(deployment: Deployment) -> dict[str, Any]:
    """Callers submit and wait with the client's usual patience while a gateway host is lost."""
    ended: Counter[str] = Counter()
    stopping = threading.Event()

    def call() -> None:
        with Client(deployment.url) as client:
            while not stopping.is_set():
                try:
                    client.submit("accel", "x" * 64).result(_END_S)
                    ended["results"] += 1
                except (PenstockError, OSError) as error:
                    ended[f"{type(error).__name__}: {error}"[:120]] += 1

    callers = [threading.Thread(target=call) for _ in range(_CALLERS)]
    for caller in callers:
        caller.start()
    time.sleep(_BEFORE_S)
    deployment.gateways[0].lose()
    time.sleep(_AFTER_S)
    stopping.set()
    for caller in callers:
        caller.join()
    deployment.gateways[0].start()
    deployment.gateways[0].await_listening()
    results = ended.pop("results", 0)
    return {"results": results, "errors": sum(ended.values()), "what": dict(ended)}
