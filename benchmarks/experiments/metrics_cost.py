"""The cost of metrics: throughput with and without metrics that are scraped every second, and a scrape of 50 models.

`python -m benchmarks.experiments.metrics_cost [--rounds 5] [--out benchmarks/results/metrics.json]` takes about a minute. Two
stacks take the load in short turns, so that a machine whose speed drifts slows both equally. Also reported is the CPU time of
gateway, worker, child and store per job. On a machine that does other work, neither means anything.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.experiments.metrics_scrape import measure_scrapes
from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.main_path.producer import supply
from benchmarks.session import check_answers, post_plan
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.store.sync import RedisStore
from penstock.errors import PenstockError
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.observed.costs import read_cpu
from penstock.loadtest.stack import Processes, await_ready, free_port, running

_MODEL = "noop"
_TURN_S = 2.0
_SCRAPE_EVERY_S = 1.0
_KEEP = 2_000
_DEFAULT_OUT = Path("benchmarks/results/metrics.json")


@dataclass(frozen=True, slots=True)
class MetricsSide:
    """One store, gateway and worker with the process ids `roots`. `scrapes`: the metrics pages to read, if any."""

    plan: StackPlan
    store: RedisStore
    redis_url: str
    roots: tuple[int, ...]
    scrapes: tuple[str, ...] = ()

    def cpu_s(self) -> dict[tuple[str, int], float]:
        own = read_cpu(self.roots).seconds
        return {key: seconds for key, seconds in own.items() if key[0] != "client"}


@dataclass(slots=True)
class SideUsage:
    """The jobs and the CPU seconds of one side over all turns."""

    jobs: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def _side(folder: Path, *, metrics_port: int) -> Iterator[MetricsSide]:
    plan = StackPlan(folder, free_port())
    with store_server(plan) as server:
        extra = {**stores_environment(plan, server.url), "PENSTOCK_WORKER__METRICS_PORT": str(metrics_port)}
        with running(Processes(plan.folder, extra), []) as processes:
            roots = (server.pid, processes.start("gateway"), processes.start("worker"))
            await_ready(plan.port, processes, path="/readyz")
            pages = (f"{plan.url}/metrics", f"http://127.0.0.1:{metrics_port}/metrics") if metrics_port else ()
            store = RedisStore(server.url)
            yield MetricsSide(plan, store, server.url, roots, pages)
            store.close()


@contextmanager
def _scraped(side: MetricsSide) -> Iterator[None]:
    """Reads the side's metrics pages every second until the block ends."""
    over = threading.Event()

    def read() -> None:
        pause_s = _SCRAPE_EVERY_S / 2
        while not over.wait(pause_s):
            for page in side.scrapes:
                with urllib.request.urlopen(page) as answer:
                    answer.read()
            pause_s = _SCRAPE_EVERY_S

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _http(side: MetricsSide) -> tuple[float, float]:
    """The number of answered predictions, and their seconds."""
    url = f"{side.plan.url}/predictions/{_MODEL}"
    report = run_load(post_plan(url, NOOP_BODY, connections=64, duration_s=_TURN_S))
    check_answers("metrics_cost", report)
    return report.summary.count, report.summary.count / report.summary.rps


def _engine(side: MetricsSide) -> tuple[float, float]:
    """The number of jobs through store and worker alone, and their seconds."""
    before = side.store.stats(_MODEL)
    supply(side.redis_url, _MODEL, seconds=_TURN_S, keep=_KEEP, data=NOOP_BODY.data)
    _empty(side)
    after = side.store.stats(_MODEL)
    return after.ended["succeeded"] - before.ended.get("succeeded", 0), after.now - before.now


def _empty(side: MetricsSide) -> None:
    give_up_at = time.monotonic() + 30.0
    while side.store.stats(_MODEL).depth:
        if time.monotonic() > give_up_at:
            raise PenstockError("the queue did not drain within 30 s")
        time.sleep(0.01)


Measure = Callable[[MetricsSide], tuple[float, float]]


def _turn(side: MetricsSide, measure: Measure, spent: SideUsage) -> float:
    """Measures one turn of a side; jobs per second."""
    before = side.cpu_s()
    with _scraped(side):
        jobs, seconds = measure(side)
    spent.cpu_s += sum(seconds - before.get(key, 0.0) for key, seconds in side.cpu_s().items())
    spent.jobs += jobs
    return jobs / seconds


def _overhead(name: str, metered: MetricsSide, silent: MetricsSide, measure: Measure, *, rounds: int) -> dict[str, float]:
    """The shares of throughput and of CPU time per job. The order changes, because the second side finds warmer caches."""
    for side in (metered, silent):
        measure(side)
    with_metrics, without = SideUsage(), SideUsage()
    ratios = []
    for number in range(rounds):
        order = [(metered, with_metrics), (silent, without)]
        rates = {side.plan.port: _turn(side, measure, spent) for side, spent in (order if number % 2 else reversed(order))}
        ratios.append(rates[metered.plan.port] / rates[silent.plan.port])
    cpu = (with_metrics.cpu_s / with_metrics.jobs) / (without.cpu_s / without.jobs)
    return {
        f"overhead_share_{name}": 1.0 - statistics.median(ratios),
        f"overhead_cpu_share_{name}": cpu - 1.0,
        f"ratio_least_{name}": min(ratios),
        f"ratio_most_{name}": max(ratios),
    }


def measure_cost(folder: Path, *, rounds: int) -> dict[str, float]:
    with ExitStack() as stack:
        metered = stack.enter_context(_side(folder / "metered", metrics_port=free_port()))
        silent = stack.enter_context(_side(folder / "silent", metrics_port=0))
        found = _overhead("http", metered, silent, _http, rounds=rounds)
        found |= _overhead("engine", metered, silent, _engine, rounds=rounds)
    return {"overhead_share": max(found["overhead_share_http"], found["overhead_share_engine"]), **found}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.metrics_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of turns per load")
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    parser.add_argument("--state-dir", default=None, help="where the stores keep their files (default: the temp folder)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-metrics-", dir=options.state_dir) as folder:
        found = {**measure_cost(Path(folder), rounds=options.rounds), **measure_scrapes(Path(folder) / "scrapes")}
    rounded = {name: round(value, 4) for name, value in found.items()}
    options.out.write_text(json.dumps(rounded, indent=2) + "\n")
    for name, value in rounded.items():
        print(f"{name}: {value:.4g}")
    print(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
