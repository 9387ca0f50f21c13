"""A host is lost: of two worker hosts, or of two gateway hosts. `host_loss_*`, `gateway_loss_*`.

A host is lost in three ways. *Killed*: all of its processes by SIGKILL; its kernel closes their connections. *Silent*: its
link is cut and then all is killed, so that nobody is told. *Apart*: its link is cut for a while and its processes live on; what
they have done is refused when it is joined again. The first is noticed by the end of the host's connections, the others by the
end of its leases.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from benchmarks.scale.deployment import MODEL, QUICK_MODEL, Deployment, has_proxy
from benchmarks.scale.drill import DrillResult, DrillSetting
from penstock.broker.store.sync import RedisStore
from penstock.client.handles.job_handle import JobHandle
from penstock.errors import PenstockError
from penstock.job import JobId, parse_job_id
from tests.hosts import host_network

KILLED, SILENT, APART = "killed", "silent", "apart"
# Rounds of each way. Without links that can be cut there is only the first.
_WORKERS = {KILLED: 10, SILENT: 5, APART: 5}
_GATEWAYS = {KILLED: 10, SILENT: 5}
_BEFORE_S, _AFTER_S = 1.5, 2.5
# 250 jobs each 0.3 s are more than two slots of the model run, so that each has a batch in its hands at any moment.
_AT_ONCE, _PAUSE_S = 250, 0.3
_CALLERS = 8
# The proxy asks a gateway again that it did not reach 5 s ago: the one that is lost next must be in use by then.
_IN_USE_S = 6.0
_END_S, _PATIENCE_S = 60.0, 120.0
# For how long a host that is apart stays so after all jobs have ended without it, and what it gets to find its way back.
_BACK_S = 3.0


def measure(setting: DrillSetting) -> DrillResult:
    if not has_proxy():
        raise PenstockError("no nginx on the path, which stands before the gateway hosts: apt-get install nginx")
    with host_network(4) as network:
        setting.say(f"two gateway hosts, two worker hosts: {network.what}")
        ways = (KILLED, SILENT, APART) if network.can_cut else (KILLED,)
        deployment = Deployment(setting.folder, network)
        with deployment.running():
            workers = {way: _lose_workers(deployment, way, setting) for way in _WORKERS if way in ways}
            gateways = {way: _lose_gateways(deployment, way, setting) for way in _GATEWAYS if way in ways}
    figures = _figures(workers, gateways)
    return DrillResult(figures, {"hosts": network.what, "worker_hosts": workers, "gateway_hosts": gateways})


def _figures(workers: dict[str, list[dict[str, Any]]], gateways: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    every = [each for rounds in workers.values() for each in rounds]
    figures = {
        "host_loss_lost": float(sum(each["lost"] for each in every)),
        "host_loss_changed": float(sum(each["changed"] for each in every)),
        "host_loss_begun_again_s": _begun_again_s(workers[KILLED]),
        "gateway_loss_errors": float(sum(each["errors"] for rounds in gateways.values() for each in rounds)),
    }
    if SILENT in workers:
        figures["host_loss_silent_begun_again_s"] = _begun_again_s([*workers[SILENT], *workers[APART]])
        figures["gateway_loss_silent_wait_s"] = max(each["longest_s"] for each in gateways[SILENT])
    return figures


def _begun_again_s(rounds: Sequence[dict[str, Any]]) -> float:
    held = [each["begun_again_s"] for each in rounds if each["held"]]
    if not held:
        raise PenstockError("no worker host held a job when it was lost: nothing had to begin again")
    return float(max(held))


# Worker hosts.


def _lose_workers(deployment: Deployment, way: str, setting: DrillSetting) -> list[dict[str, Any]]:
    rounds = []
    for number in range(setting.rounds(_WORKERS[way])):
        rounds.append(lose_a_worker_host(deployment, way))
        setting.say(f"worker host {number}, {way}: {rounds[-1]}")
    return rounds


def lose_a_worker_host(deployment: Deployment, way: str) -> dict[str, Any]:
    """`begun_again_s`: from the loss until the last of the jobs that the host held was claimed anew, detection included.

    `changed`: jobs whose end is another one after the host was there again.
    """
    host = deployment.workers[0]
    with closing(RedisStore(deployment.store.url)) as store:
        with _submitting(deployment) as jobs:
            time.sleep(_BEFORE_S)
            lost_at, refused = store.now(), _refused(store)
            if way != KILLED:
                host.cut()
            if way != APART:
                host.kill()
            time.sleep(_AFTER_S)
        ended = _await_ends(deployment, jobs)
        ids = [parse_job_id(job.id) for job in jobs]
        before = _ends(store, ids)
        if way == APART:
            host.join()
            time.sleep(_BACK_S)
        else:
            host.start()
        host.await_loaded(store)
        after = _ends(store, ids)
        again = [found.tries[-1].claimed_at - lost_at for id in ids if (found := store.read(id)) and len(found.tries) > 1]
        return {
            "jobs": len(jobs),
            "lost": len(jobs) - ended["succeeded"],
            "held": len(again),
            "begun_again_s": round(max(again, default=0.0), 3),
            "changed": sum(one != other for one, other in zip(before, after, strict=True)),
            "refused": _refused(store) - refused,
        }


@contextmanager
def _submitting(deployment: Deployment) -> Iterator[list[JobHandle]]:
    jobs: list[JobHandle] = []
    stopping = threading.Event()

    def submit() -> None:
        with deployment.client() as client:
            while not stopping.is_set():
                jobs.extend(client.submit_many(MODEL, ["x" * 64] * _AT_ONCE))
                time.sleep(_PAUSE_S)

    load = threading.Thread(target=submit)
    load.start()
    try:
        yield jobs
    finally:
        stopping.set()
        load.join()


def _await_ends(deployment: Deployment, jobs: Sequence[JobHandle]) -> Counter[str]:
    with deployment.client() as client:
        return Counter(job.status for job in client.as_completed([client.job(job.id) for job in jobs], timeout_s=_END_S))


def _ends(store: RedisStore, ids: Sequence[JobId]) -> list[object]:
    """What a caller sees of each job's end."""
    found = (store.result(id) for id in ids)
    return [each and (each[0].state, each[0].finished_at, each[1]) for each in found]


def _refused(store: RedisStore) -> int:
    """Results that were not taken, because the job had been given to another worker or had ended."""
    return int(store.stats(MODEL).counters.get("stale", 0))


# Gateway hosts.


def _lose_gateways(deployment: Deployment, way: str, setting: DrillSetting) -> list[dict[str, Any]]:
    rounds = []
    for number in range(setting.rounds(_GATEWAYS[way])):
        rounds.append(lose_a_gateway_host(deployment, way))
        setting.say(f"gateway host {number}, {way}: {rounds[-1]}")
    return rounds


def lose_a_gateway_host(deployment: Deployment, way: str) -> dict[str, Any]:
    """Callers submit and wait with the client's usual patience while a gateway host is lost."""
    ended, longest_s = Counter[str](), [0.0]
    stopping = threading.Event()

    def call() -> None:
        with deployment.client() as client:
            while not stopping.is_set():
                began = time.monotonic()
                try:
                    client.submit(QUICK_MODEL, "x" * 64).result(_PATIENCE_S)
                    ended["results"] += 1
                except (PenstockError, OSError) as error:
                    ended[f"{type(error).__name__}: {error}"[:120]] += 1
                longest_s.append(time.monotonic() - began)

    callers = [threading.Thread(target=call) for _ in range(_CALLERS)]
    for caller in callers:
        caller.start()
    time.sleep(_IN_USE_S)
    if way != KILLED:
        deployment.gateways[0].cut()
    deployment.gateways[0].kill()
    time.sleep(_AFTER_S)
    stopping.set()
    for caller in callers:
        caller.join()
    deployment.gateways[0].start()
    deployment.gateways[0].await_listening()
    results = ended.pop("results", 0)
    return {"results": results, "errors": sum(ended.values()), "what": dict(ended), "longest_s": round(max(longest_s), 2)}
