"""What a cluster of two primaries carries beside one server, over HTTP, for two models and for one model of two partitions.

Two cores cannot show twice the jobs per second, because gateway, worker and client need them too. So the capacity of a store is
told by the CPU of its busiest server per job of all: functions run on one thread, which is what limits a server. One server
serves 64 callers and two serve 64 each, because a server that has fewer callers at once takes more of its time for each.

All layouts run at once and are loaded in turns of some seconds, in alternating order, so that other work on the machine meets
all of them; a figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from benchmarks.main_path.http_figures import NOOP_BODY, random_body
from benchmarks.scale.drill import DrillResult, DrillSetting
from benchmarks.session import check_answers
from benchmarks.stack import EXAMPLES
from penstock.broker.store.ops import prefix
from penstock.job import queue_of
from penstock.loadtest.generator.connection import RequestBody, parse_target, request_bytes
from penstock.loadtest.generator.load import LoadSpec, run_load
from penstock.loadtest.observed.costs import per_request_us, read_cpu
from penstock.loadtest.stack import Processes, await_ready, free_port, running
from tests.faults.server import Server
from tests.valkey_cluster import bare_cluster

_AT_ONCE = 64  # for each primary
_ROUNDS = 10
_HALF = 8_192  # the first slot of the second of two primaries
_WORKS = {
    "noop": (EXAMPLES / "noop.py", 64, NOOP_BODY),
    "accel": (EXAMPLES / "accelerator.py", 32, random_body(4_096)),
}
_FIGURES = {
    "noop": {"models": "cluster_ratio", "parted": "cluster_partition_ratio"},
    "accel": {"models": "cluster_accel", "parted": "cluster_partition_accel"},
}


@dataclass(frozen=True, slots=True)
class Layout:
    """`primaries`: of a cluster; 0: one server that is no cluster."""

    name: str
    primaries: int
    models: tuple[str, ...]
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class CapacityTurn:
    """CPU in microseconds per job: of each server, and of each stage. Bytes per job into and out of all servers."""

    rps: float
    stores_us: list[float]
    costs_us: dict[str, float]
    in_bytes_per_job: float
    out_bytes_per_job: float


@dataclass(frozen=True, slots=True)
class _Stack:
    """A layout that runs: its gateway, its worker, and the servers of its store."""

    work: str
    layout: Layout
    port: int
    processes: Processes
    servers: list[Server]

    @property
    def name(self) -> str:
        return f"{self.work}, {self.layout.name}"

    @property
    def roots(self) -> list[int]:
        return [*self.processes.pids, *(server.pid for server in self.servers)]

    def load(self, *, seconds: float) -> LoadSpec:
        body: RequestBody = _WORKS[self.work][2]
        targets = [parse_target(f"http://127.0.0.1:{self.port}/predictions/{model}") for model in self.layout.models]
        headers = {"Content-Type": body.content_type}
        requests = [request_bytes(target, method="POST", body=body.data, headers=headers) for target in targets]
        connections = _AT_ONCE * max(1, self.layout.primaries)
        return LoadSpec(targets[0], itertools.cycle(requests), connections=connections, duration_s=seconds)


def measure(setting: DrillSetting) -> DrillResult:
    """One server, a cluster of one primary, two models and one model of two partitions on two primaries."""
    figures: dict[str, float] = {}
    detail: dict[str, Any] = {}
    for work, names in _FIGURES.items():
        rounds = _rounds(setting, work)
        figures |= {figure: statistics.median(spread(turns, layout) for turns in rounds) for layout, figure in names.items()}
        detail[work] = [{layout: asdict(turn) for layout, turn in turns.items()} for turns in rounds]
    return DrillResult(figures, detail)


def _rounds(setting: DrillSetting, work: str) -> list[dict[str, CapacityTurn]]:
    with ExitStack() as opened:
        stacks = [opened.enter_context(_stack(setting.folder, work, layout)) for layout in layouts(work)]
        for stack in stacks:
            check_answers(stack.name, run_load(stack.load(seconds=2.0)))
        return [_round(setting, stacks[:: -1 if number % 2 else 1], number) for number in range(setting.rounds(_ROUNDS))]


def layouts(work: str) -> list[Layout]:
    pair = (_name(work, lambda name: _primary(name) == 0), _name(work, lambda name: _primary(name) == 1))
    split = _name(work, lambda name: {_primary(queue_of(name, number)) for number in (0, 1)} == {0, 1})
    return [
        Layout("server", 0, pair[:1]),
        Layout("primary", 1, pair[:1]),
        Layout("models", 2, pair),
        Layout("parted", 2, (split,), partitions=2),
    ]


def _name(work: str, suits: Callable[[str], bool]) -> str:
    return next(name for number in itertools.count() if suits(name := f"{work}-{number}"))


def _primary(queue: str) -> int:
    """Which of two primaries has the queue."""
    return key_slot(prefix(queue).encode()) // _HALF


def spread(turns: dict[str, CapacityTurn], layout: str) -> float:
    """The capacity of a layout in units of one server's."""
    return max(turns["server"].stores_us) / max(turns[layout].stores_us)


def _round(setting: DrillSetting, stacks: Sequence[_Stack], number: int) -> dict[str, CapacityTurn]:
    turns = {stack.layout.name: _turn(setting, stack) for stack in stacks}
    ratios = ", ".join(f"{name} {spread(turns, name):.2f}" for name in turns if name != "server")
    setting.say(f"{stacks[0].work}, round {number + 1}, in units of one server: {ratios}")
    return turns


def _turn(setting: DrillSetting, stack: _Stack) -> CapacityTurn:
    traffic, cpu = [_traffic(server) for server in stack.servers], read_cpu(stack.roots)
    report = run_load(stack.load(seconds=2.0 if setting.quick else 4.0))
    spent, after = read_cpu(stack.roots), [_traffic(server) for server in stack.servers]
    stack.processes.check()
    check_answers(stack.name, report)
    jobs = report.summary.count
    stores = [(seconds - cpu.seconds.get(key, 0.0)) / jobs * 1e6 for key, seconds in spent.seconds.items() if key[0] == "redis"]
    came, went = (sum(now[way] - then[way] for then, now in zip(traffic, after, strict=True)) / jobs for way in (0, 1))
    turn = CapacityTurn(report.summary.rps, sorted(stores, reverse=True), per_request_us(spent.since(cpu), jobs), came, went)
    setting.say(f"{stack.name}: {turn.rps:,.0f}/s, servers {', '.join(f'{us:.1f} us' for us in turn.stores_us)} per job")
    return turn


def _traffic(server: Server) -> tuple[int, int]:
    """The bytes that came into the server, and that left it, since its start."""
    with server.client() as client:
        stats: Any = client.info("stats")
    return int(stats["total_net_input_bytes"]), int(stats["total_net_output_bytes"])


@contextmanager
def _stack(folder: Path, work: str, layout: Layout) -> Iterator[_Stack]:
    folder, port = folder / f"{work}-{layout.name}", free_port()
    folder.mkdir()
    with _store(folder / "store", layout) as (url, servers):
        (folder / "penstock.toml").write_text("\n".join(_settings(folder, work, layout, port)) + "\n")
        variables = {"PENSTOCK_CONFIG": str(folder / "penstock.toml"), "PENSTOCK_REDIS_URL": url}
        processes = Processes(folder, variables)
        with running(processes, [["gateway"], ["worker"]]):
            await_ready(port, processes, path="/readyz")
            yield _Stack(work, layout, port, processes, servers)


@contextmanager
def _store(folder: Path, layout: Layout) -> Iterator[tuple[str, list[Server]]]:
    with ExitStack() as opened:
        if layout.primaries:
            cluster = opened.enter_context(bare_cluster(folder, layout.primaries))
            yield cluster.url, cluster.servers
        else:
            server = Server(folder)
            opened.callback(server.stop)
            server.start()
            yield server.url, [server]


def _settings(folder: Path, work: str, layout: Layout, port: int) -> list[str]:
    source, size, _ = _WORKS[work]
    lines = ["[store]", f'state_dir = "{folder / "state"}"', "[gateway]", f"port = {port}"]
    for model in layout.models:
        lines += [f'[models."{model}"]', f'source = "{source}"', f"max_batch_size = {size}", "max_queue_depth = 10_000_000"]
        lines += [f"partitions = {layout.partitions}"] if layout.partitions > 1 else []
    return lines
