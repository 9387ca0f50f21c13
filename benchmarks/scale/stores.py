"""Two stores beside one: what each takes of a core per job, over HTTP, for two models and for one model of two partitions.

Two cores cannot show twice the jobs per second, because gateway, worker and client need them too. So the capacity of stores is
told by the CPU of the busiest one per job of all: a store's functions run on one thread, which is what limits it. One store
serves 64 callers and two serve 64 each, because a store that has fewer callers at once takes more of its time for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.main_path.http_figures import NOOP_BODY, random_body
from benchmarks.scale.drill import DrillResult, DrillSetting
from benchmarks.session import check_answers
from benchmarks.stack import EXAMPLES
from penstock.broker.server.embedded import EmbeddedServer
from penstock.broker.store.connection import connect
from penstock.loadtest.generator.connection import RequestBody, parse_target, request_bytes
from penstock.loadtest.generator.load import LoadPlan, run_load
from penstock.loadtest.observed.costs import per_request_us, read_cpu
from penstock.loadtest.stack import Processes, await_ready, free_port, running

_AT_ONCE = 64  # for each store
_WORKS = {
    "noop": (EXAMPLES / "noop.py", 64, NOOP_BODY),
    "accel": (EXAMPLES / "accelerator.py", 32, random_body(4_096)),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """`queues`: what the second store takes, by the names of queues; empty: there is one store."""

    models: tuple[str, ...]
    partitions: int
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoresTurn:
    """CPU in microseconds per job: of each store, and of each stage. Bytes per job into and out of all stores."""

    rps: float
    stores_us: list[float]
    costs_us: dict[str, float]
    in_bytes_per_job: float
    out_bytes_per_job: float


def measure(setting: DrillSetting) -> DrillResult:
    """One store and model; two models, one store each; one model of two partitions, one store each."""
    figures: dict[str, float] = {}
    detail: dict[str, Any] = {}
    for work in _WORKS:
        pair = (f"{work}-a", f"{work}-b")
        one = _turn(setting, work, Layout(pair[:1], 1, ()), "one")
        two = _turn(setting, work, Layout(pair, 1, (pair[1],)), "two")
        parted = _turn(setting, work, Layout((work,), 2, (f"{work}:1",)), "parted")
        names = ("two_store_ratio", "partition_ratio") if work == "noop" else ("two_store_accel", "partition_accel")
        figures |= {names[0]: spread(one, two), names[1]: spread(one, parted)}
        turns = {"one": one, "two": two, "parted": parted}
        detail[work] = {name: asdict(turn) for name, turn in turns.items()}
    return DrillResult(figures, detail)


def spread(one: StoresTurn, several: StoresTurn) -> float:
    """The capacity of several stores in units of one store's."""
    return max(one.stores_us) / max(several.stores_us)


def _turn(setting: DrillSetting, work: str, layout: Layout, name: str) -> StoresTurn:
    folder = setting.folder / f"{work}-{name}"
    folder.mkdir()
    with _stack(folder, work, layout) as (port, processes, roots, urls):
        plan = _load(port, work, layout, seconds=3.0 if setting.quick else 10.0)
        check_answers(name, run_load(_load(port, work, layout, seconds=2.0)))
        traffic, cpu = [_traffic(url) for url in urls], read_cpu(roots)
        report = run_load(plan)
        spent, after = read_cpu(roots), [_traffic(url) for url in urls]
        processes.check()
        check_answers(name, report)
    jobs = report.summary.count
    stores = [(seconds - cpu.seconds.get(key, 0.0)) / jobs * 1e6 for key, seconds in spent.seconds.items() if key[0] == "redis"]
    came, went = (sum(now[way] - then[way] for then, now in zip(traffic, after, strict=True)) / jobs for way in (0, 1))
    turn = StoresTurn(report.summary.rps, sorted(stores, reverse=True), per_request_us(spent.since(cpu), jobs), came, went)
    setting.say(f"{work}, {name}: {turn.rps:,.0f}/s, stores {', '.join(f'{us:.1f} us' for us in turn.stores_us)} per job")
    return turn


def _load(port: int, work: str, layout: Layout, *, seconds: float) -> LoadPlan:
    body: RequestBody = _WORKS[work][2]
    targets = [parse_target(f"http://127.0.0.1:{port}/predictions/{model}") for model in layout.models]
    headers = {"Content-Type": body.content_type}
    requests = [request_bytes(target, method="POST", body=body.data, headers=headers) for target in targets]
    return LoadPlan(
        targets[0], itertools.cycle(requests), connections=_AT_ONCE * (2 if layout.queues else 1), duration_s=seconds
    )


def _traffic(url: str) -> tuple[int, int]:
    """The bytes that came into the store at `url`, and that left it, since its start."""
    client = connect(url)
    try:
        stats = dict(client.info("stats"))
    finally:
        client.close()
    return int(stats["total_net_input_bytes"]), int(stats["total_net_output_bytes"])


@contextmanager
def _stack(folder: Path, work: str, layout: Layout) -> Iterator[tuple[int, Processes, list[int], list[str]]]:
    """Port, processes, roots of the process trees, and the stores' URLs."""
    port = free_port()
    with EmbeddedServer(folder / "main") as main, EmbeddedServer(folder / "second") as second:
        assert main.pid is not None
        assert second.pid is not None
        (folder / "penstock.toml").write_text("\n".join(_settings(folder, work, layout, second.url, port)) + "\n")
        variables = {"PENSTOCK_CONFIG": str(folder / "penstock.toml"), "PENSTOCK_REDIS_URL": main.url}
        processes = Processes(folder, variables)
        with running(processes, [["gateway"], ["worker"]]):
            await_ready(port, processes, path="/readyz")
            used = [main, second] if layout.queues else [main]
            yield port, processes, [*processes.pids, *(server.pid for server in used if server.pid)], [one.url for one in used]


def _settings(folder: Path, work: str, layout: Layout, second_url: str, port: int) -> list[str]:
    source, size, _ = _WORKS[work]
    lines = ["[store]", f'state_dir = "{folder / "state"}"', "[gateway]", f"port = {port}"]
    for model in layout.models:
        lines += [f'[models."{model}"]', f'source = "{source}"', f"max_batch_size = {size}", "max_queue_depth = 10_000_000"]
        lines += [f"partitions = {layout.partitions}"] if layout.partitions > 1 else []
    if layout.queues:
        queues = ", ".join(f'"{queue}"' for queue in layout.queues)
        lines += ["[stores.second]", f'url = "{second_url}"', f"models = [{queues}]"]
    return lines
