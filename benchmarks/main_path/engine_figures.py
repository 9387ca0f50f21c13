"""Broker and worker alone: a producer process feeds the store and a worker drains it, without HTTP."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.main_path.producer import fill
from benchmarks.session import MeasuringSession
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.store.sync import RedisStore
from penstock.errors import PenstockError
from penstock.loadtest.observed.costs import CpuReading, per_request_us, read_cpu, read_machine
from penstock.loadtest.stack import Processes, running

_MODEL = "noop"
_KEEP = 2_000
_PRODUCER = "benchmarks.main_path.producer"
_WARM_UP_S = 2.0
_READY_S = 60.0


def measure_engine(session: MeasuringSession) -> None:
    plan = session.stack_plan("engine")
    with store_server(plan) as server:
        store = RedisStore(server.url)
        _measure_supply(session, plan, store, server_url=server.url, server_pid=server.pid)
        _measure_drain(session, plan, store, server_url=server.url)
        store.close()


def _measure_supply(session: MeasuringSession, plan: StackPlan, store: RedisStore, *, server_url: str, server_pid: int) -> None:
    with _worker(plan, store, server_url) as processes, _producer(server_url, session.seconds + 2 * _WARM_UP_S) as producer:
        time.sleep(_WARM_UP_S)
        roots = [server_pid, producer.pid]
        before, first, machine = _spent(processes, roots), _ended(store), read_machine()
        time.sleep(session.seconds)
        after, last = _spent(processes, roots), _ended(store)
        foreign = read_machine().foreign_share(machine, sum(after.since(before).values()))
        processes.check()
    finished, seconds = last[0] - first[0], last[1] - first[1]
    session.findings.figures["engine_jobs_per_s"] = finished / seconds
    session.findings.detail["engine"] = {"finished": finished, "seconds": seconds, "cpu_s": after.since(before)}
    session.note_foreign("engine", foreign)
    session.findings.cost("engine", per_request_us(after.since(before), finished))
    session.say(f"engine: {finished / seconds:,.0f} jobs/s")


def _measure_drain(session: MeasuringSession, plan: StackPlan, store: RedisStore, *, server_url: str) -> None:
    """Fills the queue first and then starts a worker, so that the store serves only the worker."""
    jobs = int(10_000 * session.seconds)
    start = _ended(store)[0]
    for _ in fill(store, _MODEL, jobs, data=NOOP_BODY.data):
        pass
    with _worker(plan, store, server_url) as processes:
        points = _watch(store, start, jobs, processes)
    rate = drain_rate(points, jobs)
    session.findings.figures["engine_drain_jobs_per_s"] = rate
    session.findings.detail["engine_drain"] = {"jobs": jobs, "points": points[:: max(1, len(points) // 50)]}
    session.say(f"engine, from a full queue: {rate:,.0f} jobs/s")


def _watch(store: RedisStore, start: int, jobs: int, processes: Processes) -> list[tuple[int, float]]:
    points: list[tuple[int, float]] = []
    give_up_at = time.monotonic() + 2 * _READY_S
    while not points or points[-1][0] < jobs:
        processes.check()
        if time.monotonic() > give_up_at:
            raise PenstockError(f"only {points[-1][0] if points else 0} of {jobs} jobs were done in {2 * _READY_S:.0f} s")
        ended, now = _ended(store)
        points.append((ended - start, now))
        time.sleep(0.02)
    return points


def drain_rate(points: list[tuple[int, float]], jobs: int) -> float:
    """Jobs per second between 20 % and 90 % done, without the worker's start and the last, partial batches."""
    inner = [point for point in points if 0.2 * jobs <= point[0] <= 0.9 * jobs]
    if len(inner) < 2 or inner[-1][1] == inner[0][1]:
        raise PenstockError(f"{jobs} jobs drained between two samples: measure with more jobs")
    return (inner[-1][0] - inner[0][0]) / (inner[-1][1] - inner[0][1])


def _ended(store: RedisStore) -> tuple[int, float]:
    """The number of succeeded jobs, and the moment by the store's clock."""
    stats = store.stats(_MODEL)
    return stats.ended.get("succeeded", 0), stats.now


def _spent(processes: Processes, roots: list[int]) -> CpuReading:
    return CpuReading({**processes.read_cpu().seconds, **read_cpu(roots, others={_PRODUCER: "client"}).seconds})


@contextmanager
def _worker(plan: StackPlan, store: RedisStore, server_url: str) -> Iterator[Processes]:
    """One worker process whose child for the no-op model is ready."""
    with running(Processes(plan.folder, stores_environment(plan, server_url)), [["worker"]]) as processes:
        give_up_at = time.monotonic() + _READY_S
        while not _slot_ready(store):
            processes.check()
            if time.monotonic() > give_up_at:
                raise PenstockError(f"no worker was ready within {_READY_S:.0f} s; {processes.tail()}")
            time.sleep(0.02)
        yield processes


def _slot_ready(store: RedisStore) -> bool:
    return any(slot.state == "ready" and slot.model == _MODEL for worker in store.workers() for slot in worker.slots)


@contextmanager
def _producer(server_url: str, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    options = ["--seconds", str(seconds), "--keep", str(_KEEP), "--input", NOOP_BODY.data.decode()]
    command = [sys.executable, "-m", _PRODUCER, server_url, _MODEL, *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
