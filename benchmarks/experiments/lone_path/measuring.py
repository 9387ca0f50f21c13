"""Lone requests to two stacks in turns, one with stamps and one without, and the least that they could wait for beside them."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.experiments.lone_path import stamping
from benchmarks.experiments.lone_path.report import report
from benchmarks.experiments.lone_path.steps import MARKS, Asked
from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.errors import PenstockError
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.observed.costs import read_usage
from penstock.loadtest.stack import Processes, await_ready, free_port, running

_BLOCK = 25
_WRITTEN = b"x" * 1_024
_FUNCTIONS = ("submit", "finish", "claim")
_SLOW_LOG = 4_096
Parts = dict[str, Callable[[], Asked]]


_HEADERS = {"content-type": NOOP_BODY.content_type}


@dataclass(slots=True)
class Side:
    """One stack, and the client's connections to it. `pause_s`: how long the system rests before a request."""

    folder: Path
    store: redis.Redis
    port: int
    pids: list[int]
    pause_s: float
    gateway: socket.socket | None = None

    def close(self) -> None:
        self.store.close()
        if self.gateway is not None:
            self.gateway.close()

    def predict(self) -> Asked:
        """Ask for one answer."""
        path = f"http://127.0.0.1:{self.port}/predictions/noop"
        before = self._synced_us()
        sent, got = self._exchange(request_bytes(parse_target(path), method="POST", body=NOOP_BODY.data, headers=_HEADERS))
        # What the slot and the store still do for the request must not count for the next one.
        time.sleep(self.pause_s)
        return Asked(sent, got, self._synced_us() - before)

    def ask_nothing(self) -> Asked:
        """Send an empty request."""
        target = parse_target(f"http://127.0.0.1:{self.port}/livez")
        time.sleep(self.pause_s)
        return Asked(*self._exchange(request_bytes(target, method="GET", body=b"", headers={})), 0)

    def write(self) -> Asked:
        """Write what the store syncs before it answers."""
        time.sleep(self.pause_s)
        began = time.monotonic_ns()
        self.store.set("floor", _WRITTEN)
        return Asked(began, time.monotonic_ns(), 0)

    def log_commands(self) -> None:
        """Have the server note how long each command takes, from now on."""
        self.store.config_set("slowlog-max-len", _SLOW_LOG)
        self.store.config_set("slowlog-log-slower-than", 0)

    def function_us(self) -> dict[str, float]:
        """The median time of each function, by the server's own log of the latest commands."""
        taken: dict[str, list[int]] = {name: [] for name in _FUNCTIONS}
        for entry in self.store.slowlog_get(_SLOW_LOG):
            words = entry["command"].split()
            name = words[1].decode().split("_")[1] if words[0] == b"FCALL" else ""
            if name in taken:
                taken[name].append(entry["duration"])
        return {name: statistics.median(all_us) for name, all_us in taken.items()}

    def _synced_us(self) -> int:
        return int(self.store.info("debug")["eventloop_duration_aof_sum"])

    def _exchange(self, request: bytes) -> tuple[int, int]:
        # At the first request: the gateway closes a connection over which nothing is asked for seconds.
        gateway = self.gateway = self.gateway or socket.create_connection(("127.0.0.1", self.port))
        sent = time.monotonic_ns()
        gateway.sendall(request)
        answer = gateway.recv(1 << 16)
        got = time.monotonic_ns()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise PenstockError(f"the gateway answered {answer[:400]!r}")
        return sent, got


@contextmanager
def side(folder: Path, *, stamped: bool, pause_s: float) -> Iterator[Side]:
    """A store, a gateway and a worker, ready to answer."""
    folder.mkdir(parents=True)
    plan = StackPlan(folder, free_port())
    with store_server(plan) as server:
        extra = stores_environment(plan, server.url)
        if stamped:
            stamping.install(folder, MARKS)
            extra["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        with running(Processes(folder, extra), [["worker"], ["gateway"]]) as processes:
            await_ready(plan.port, processes, path="/readyz")
            pids = [server.pid, *processes.pids]
            with closing(Side(folder, redis.Redis.from_url(server.url), plan.port, pids, pause_s)) as made:
                yield made


def measure(folder: Path, *, seconds: float, pause_s: float, warm_up_s: float = 3.0) -> dict[str, Any]:
    """The report. Blocks of requests take turns, so that a machine whose speed drifts slows all of them alike."""
    with ExitStack() as stack:
        stamped = stack.enter_context(side(folder / "stamped", stamped=True, pause_s=pause_s))
        plain = stack.enter_context(side(folder / "plain", stamped=False, pause_s=pause_s))
        parts: Parts = {
            "stamped": stamped.predict,
            "plain": plain.predict,
            "empty": plain.ask_nothing,
            "write": plain.write,
        }
        _in_turns(parts, seconds=warm_up_s)
        stamped.log_commands()
        pids, before = [*stamped.pids, *plain.pids], read_usage([*stamped.pids, *plain.pids])
        found = _in_turns(parts, seconds=seconds)
        foreign = read_usage(pids).foreign_share(before)
        functions, stamps = stamped.function_us(), stamping.read(stamped.folder, MARKS)
    circumstances = {"foreign_cpu_share": round(foreign, 3), "pause_ms": 1e3 * pause_s, "seconds": seconds}
    return report(found, functions=functions, stamps=stamps) | circumstances


def _in_turns(parts: Parts, *, seconds: float) -> dict[str, list[Asked]]:
    found: dict[str, list[Asked]] = {name: [] for name in parts}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for name, ask in parts.items():
            found[name] += [ask() for _ in range(_BLOCK)]
    return found
