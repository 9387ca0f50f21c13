"""`python -m benchmarks.experiments.async_items TREE [TREE ...]`: jobs that wait for another service, tree by tree, in turns.

A TREE is a checkout. One process of an async handler passes 128 callers' items on to a service that answers in 20 ms mostly, in
100 ms or 1 s sometimes; 64 items are in flight at once. Prints the medians of each tree, and rates as ratios to the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.experiments.async_items.service import mean_s
from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.session import check_answers, post_plan
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.stack import Processes, await_ready, free_port, running

AT_ONCE, CALLERS = 64, 128
_WARM_UP_S = 2.0
_HANDLER = """
import os

import httpx2

import penstock


class Proxy(penstock.Handler):
    async def initialize(self, context):
        self.client = httpx2.AsyncClient(timeout=10.0, limits=httpx2.Limits(max_connections=None))

    async def inference(self, batch):
        answer = await self.client.post(os.environ["SERVICE_URL"], json=batch[0])
        return [answer.json()]
"""


@dataclass(frozen=True, slots=True)
class OverlapSide:
    """One tree's stack and the figures of its turns."""

    name: str
    url: str
    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)

    def turn(self, seconds: float) -> None:
        report = run_load(post_plan(self.url, NOOP_BODY, connections=CALLERS, duration_s=seconds))
        check_answers(self.name, report)
        self.rates.append(report.summary.rps)
        self.p50_ms.append(report.summary.p50_ms)
        self.p99_ms.append(report.summary.p99_ms)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.async_items", description=__doc__)
    parser.add_argument("trees", nargs="+")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a turn")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-async-") as folder, contextlib.ExitStack() as stack:
        service = stack.enter_context(_service())
        sides = [_side(tree, Path(folder) / str(number), stack, service=service) for number, tree in enumerate(options.trees)]
        for side in sides:
            run_load(post_plan(side.url, NOOP_BODY, connections=CALLERS, duration_s=_WARM_UP_S))
        for turn in range(options.turns):
            # Each tree goes first equally often.
            for place in range(len(sides)):
                sides[(turn + place) % len(sides)].turn(options.seconds)
        print(f"{AT_ONCE} at once, {mean_s() * 1e3:.0f} ms each on average: at most {AT_ONCE / mean_s():,.0f}/s")
        for side in sides:
            print(report_line(side, sides[0]))


def report_line(side: OverlapSide, first: OverlapSide) -> str:
    rate, p50, p99 = map(statistics.median, (side.rates, side.p50_ms, side.p99_ms))
    ratio = rate / statistics.median(first.rates)
    return f"{side.name}: {rate:,.0f}/s, ratio {ratio:.2f}, p50 {p50:.0f} ms, p99 {p99:.0f} ms"


@contextlib.contextmanager
def _service() -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.experiments.async_items.service", str(port)])
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(10.0)


def _side(name: str, folder: Path, stack: contextlib.ExitStack, *, service: str) -> OverlapSide:
    tree, port = Path(name).resolve(), free_port()
    folder.mkdir()
    (folder / "proxy.py").write_text(_HANDLER)
    config = folder / "penstock.toml"
    config.write_text(
        f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n'
        f'[models.proxy]\nsource = "{folder / "proxy.py"}"\nmax_batch_size = {AT_ONCE}\n'
        f'[models.proxy.env]\nSERVICE_URL = "{service}"\n'
    )
    links = f"{tree / 'src'}:{tree}"
    processes = Processes(folder, {"PENSTOCK_CONFIG": str(config), "PYTHONPATH": links})
    await_ready(port, stack.enter_context(running(processes, [["up", str(config)]])), path="/readyz")
    return OverlapSide(name, f"http://127.0.0.1:{port}/predictions/proxy")


if __name__ == "__main__":
    main()
