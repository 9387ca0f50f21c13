"""The memory and CPU time that waiting clients take in a gateway process, with its store beside it.

`python -m benchmarks.experiments.waiting_clients [--clients 10000]` holds so many long polls, then so many event streams, and
prints for each kind the memory and the CPU time of the gateway per client, and what a look at another job takes meanwhile.
A long poll ends after 30 s: on a machine on which they do not all come within that time, hold fewer. The hard limit of open
files has to allow some more than the clients (`ulimit -Hn`).
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.records import NewJob
from penstock.broker.store.sync import RedisStore
from penstock.job import Payload, new_job_id
from penstock.loadtest.stack import Processes, await_ready, free_port, running
from penstock.model_spec import ModelInfo

_MODEL = "waited"
_KINDS = {"long polls": "?wait=30", "event streams": "/events"}
_JOBS = 100
_AT_ONCE = 200
_LOOKS = 50


class Crowd:
    """Clients that have sent a request each and read no more than what has come at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def come(self, paths: list[str]) -> None:
        for first in range(0, len(paths), _AT_ONCE):
            await asyncio.gather(*(self._ask(path) for path in paths[first : first + _AT_ONCE]))

    async def _ask(self, path: str) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        self._writers.append(writer)

    async def leave(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


def measure(folder: Path, kind: str, clients: int) -> None:
    plan = StackPlan(folder, free_port())
    with store_server(plan) as server:
        store = RedisStore(server.url)
        store.announce_model(ModelInfo(_MODEL, versions={"1": None}))
        new = [NewJob(new_job_id(_MODEL), "1", Payload("application/json", b"1")) for _ in range(_JOBS)]
        jobs = [str(stored.id) for stored in store.submit(new)]
        with running(Processes(folder, stores_environment(plan, server.url)), [["gateway"]]) as processes:
            await_ready(plan.port, processes, path="/startupz")
            asyncio.run(_held(plan, jobs, kind, clients))


async def _held(plan: StackPlan, jobs: list[str], kind: str, clients: int) -> None:
    gateway = _listener(plan.port)
    memory, spent_s = gateway.memory_info().rss, sum(gateway.cpu_times()[:2])
    crowd, began_at = Crowd(plan.port), time.perf_counter()
    await crowd.come([f"/v1/jobs/{jobs[n % len(jobs)]}{_KINDS[kind]}" for n in range(clients)])
    looks = [await asyncio.to_thread(_look, f"{plan.url}/v1/jobs/{jobs[0]}") for _ in range(_LOOKS)]
    took_s = time.perf_counter() - began_at
    per_client = (gateway.memory_info().rss - memory) / clients
    cpu_s = sum(gateway.cpu_times()[:2]) - spent_s
    print(
        f"{clients} {kind}: {per_client / 1024:.1f} KiB of memory and {cpu_s / clients * 1e6:.0f} us of CPU time per client, "
        f"all there after {took_s:.1f} s; a look beside them {statistics.median(looks) * 1e3:.1f} ms (median)"
    )
    await crowd.leave()


def _look(url: str) -> float:
    began_at = time.perf_counter()
    with urllib.request.urlopen(url, timeout=30.0) as answer:
        answer.read()
    return time.perf_counter() - began_at


def _listener(port: int) -> psutil.Process:
    """The process that listens on the port."""
    found = next(
        link.pid for link in psutil.net_connections("tcp") if link.status == psutil.CONN_LISTEN and link.laddr.port == port
    )
    return psutil.Process(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    wanted: int = parser.parse_args().clients
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    for kind in _KINDS:
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), kind, wanted)


if __name__ == "__main__":
    main()
