"""Tasks of stock Celery clients beside submits over HTTP: the no-op model, in turns on one stack, until all jobs have ended.

`python -m benchmarks.experiments.celery_door [--seconds 8] [--rounds 3] [--json FILE]` prints tasks per second and CPU per
task, and writes benchmarks/results/celery_door.json. The clients run on the same machine; their CPU time is told apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import redis
from celery import Celery

from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.session import check_answers, post_plan
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.celery_connection import broker_url
from penstock.broker.store.sync import RedisStore
from penstock.errors import PenstockError
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.observed.costs import read_cpu
from penstock.loadtest.stack import Processes, await_ready, free_port, running

RESULTS = Path(__file__).resolve().parents[1] / "results" / "celery_door.json"
_MODEL, _TASK = "noop", "penstock.noop"
_CONNECTIONS = 64
# A process of a stock client sends one task after another, so that several are needed to give the door work.
_CLIENTS = 2
_WARM_S = 2.0
_DRAINED_S = 120.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class DoorStack:
    plan: StackPlan
    url: str
    store: RedisStore
    redis: redis.Redis
    roots: tuple[int, ...]

    def ended(self) -> int:
        return self.store.stats(_MODEL).ended.get("succeeded", 0)

    def door_depth(self) -> int:
        return self.redis.llen("penstock") + self.redis.zcard("ps:{*}:foreign") + self.redis.zcard(f"ps:{{{_MODEL}}}:foreign")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.celery_door", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="for which tasks are sent in each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--state-dir", default=None, help="where the store keeps its files (default: the temp folder)")
    parser.add_argument("--json", type=Path, default=RESULTS)
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(send_tasks(options.client, options.seconds)))
        return
    turns: dict[str, list[dict[str, float]]] = {"http": [], "celery": []}
    with tempfile.TemporaryDirectory(prefix="penstock-door-", dir=options.state_dir) as folder, _stack(Path(folder)) as stack:
        for send in (_over_http, _over_celery):
            measure(stack, send, _WARM_S)
        for _ in range(options.rounds):
            for name, send in (("http", _over_http), ("celery", _over_celery)):
                turns[name].append(measure(stack, send, options.seconds))
                print(f"{name}: {turns[name][-1]}", flush=True)
    found = result(turns)
    print(f"celery over http: tasks per second {found['rate_ratio']}, CPU per task {found['cpu_ratio']}")
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def result(turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The median of each figure over the turns of each way in, and those of Celery over those of HTTP."""
    shown = {
        name: {key: round(statistics.median(turn[key] for turn in found), 1) for key in found[0]}
        for name, found in turns.items()
    }
    http, celery = shown["http"], shown["celery"]
    return {
        "clients": _CLIENTS,
        "http_connections": _CONNECTIONS,
        **shown,
        "rate_ratio": round(celery["tasks_per_s"] / http["tasks_per_s"], 3),
        "cpu_ratio": round(celery["cpu_us_per_task"] / http["cpu_us_per_task"], 3),
    }


@contextmanager
def _stack(folder: Path) -> Iterator[DoorStack]:
    plan = StackPlan(folder, free_port())
    with store_server(plan) as server:
        commands = [["worker"], ["gateway"]]
        with running(Processes(folder, stores_environment(plan, server.url)), commands) as processes:
            await_ready(plan.port, processes, path="/readyz")
            store = RedisStore(server.url)
            yield DoorStack(plan, server.url, store, redis.Redis.from_url(server.url), (*processes.pids, server.pid))
            store.close()


Send = Callable[[DoorStack, float], tuple[int, float]]


def measure(stack: DoorStack, send: Send, seconds: float) -> dict[str, float]:
    """Figures of one turn; CPU is that of gateway, store, worker and model. Raises `PenstockError` for lost tasks."""
    ended, before, began_at = stack.ended(), read_cpu(stack.roots), time.perf_counter()
    sent, client_cpu_s = send(stack, seconds)
    waiting = stack.door_depth()
    _await_ended(stack, ended + sent)
    took_s = time.perf_counter() - began_at
    spent = read_cpu(stack.roots).since(before)
    cpu_s = sum(seconds for stage, seconds in spent.items() if stage != "client")
    return {
        "tasks": sent,
        "tasks_per_s": sent / took_s,
        "waiting_at_the_door_at_the_end": waiting,
        "cpu_us_per_task": cpu_s / sent * 1e6,
        "client_cpu_us_per_task": client_cpu_s / sent * 1e6,
    }


def _await_ended(stack: DoorStack, count: int) -> None:
    give_up_at = time.perf_counter() + _DRAINED_S
    while (found := stack.ended()) < count:
        if time.perf_counter() > give_up_at:
            raise PenstockError(f"{count - found} tasks did not end within {_DRAINED_S:.0f} s")
        time.sleep(_LOOK_S)


def _over_http(stack: DoorStack, seconds: float) -> tuple[int, float]:
    """How many jobs were submitted, and what the load generator took."""
    before = time.process_time()
    url = f"{stack.plan.url}/v1/models/{_MODEL}/jobs"
    report = run_load(post_plan(url, NOOP_BODY, connections=_CONNECTIONS, duration_s=seconds))
    check_answers("http", report)
    return report.summary.count, time.process_time() - before


def _over_celery(stack: DoorStack, seconds: float) -> tuple[int, float]:
    command = [sys.executable, "-m", "benchmarks.experiments.celery_door", "--client", stack.url, "--seconds", str(seconds)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(_CLIENTS)]
    found = [json.loads(client.communicate()[0]) for client in clients]
    return sum(int(one["sent"]) for one in found), sum(one["cpu_s"] for one in found)


def send_tasks(url: str, seconds: float) -> dict[str, float]:
    """Send tasks one after another, as a program does that uses nothing but Celery."""
    app = Celery("shop", broker=broker_url(url), backend=broker_url(url))
    app.conf.task_routes = {"penstock.*": {"queue": "penstock"}}
    square = app.signature(_TASK)
    square.delay({"x": 4})
    sent, before, until = 1, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        square.delay({"x": 4})
        sent += 1
    return {"sent": sent, "cpu_s": time.process_time() - before}


if __name__ == "__main__":
    main()
