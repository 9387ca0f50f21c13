"""The cost of the dashboard: CPU time per request of gateway, worker, child and store, with the history and without.

`python -m benchmarks.experiments.history [--rate 1000] [--rounds 10]` takes about six minutes and writes
`benchmarks/results/history.json`. Three stacks take the same load in turns, each of them first in turn, so that a machine
whose speed drifts slows all equally: one without a history, one with it, and one with it whose first page somebody looks at.
On a machine that does other work, the result means nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import httpx2
import redis

from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.session import check_answers, post_plan
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.store.ops import prefix
from penstock.extensions.history.store import LENGTHS_S
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.observed.costs import read_cpu
from penstock.loadtest.stack import Processes, await_ready, free_port, running

_MODEL = "noop"
# Two beats of a worker, and two of a gateway, lie in each turn.
_TURN_S = 10.0
_CONNECTIONS = 64
# As templates/_history.html asks.
_CHARTS_EVERY_S = 10.0
_DEFAULT_OUT = Path("benchmarks/results/history.json")


@dataclass(slots=True)
class HistorySide:
    """One store, gateway and worker with the process ids `roots`, and what its turns cost."""

    url: str
    redis_url: str
    roots: tuple[int, ...]
    answered: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def turn(self, rate: float, duration_s: float = _TURN_S) -> tuple[int, float]:
        """The number of answers, and the CPU seconds of all of its processes."""
        plan = post_plan(f"{self.url}/predictions/{_MODEL}", NOOP_BODY, connections=_CONNECTIONS, duration_s=duration_s)
        before = read_cpu(self.roots).seconds
        report = run_load(replace(plan, rate=rate))
        check_answers("history", report)
        after = read_cpu(self.roots).seconds
        spent = {key: seconds - before.get(key, 0.0) for key, seconds in after.items() if key[0] != "client"}
        return report.summary.count, sum(spent.values())

    def measure(self, rate: float) -> None:
        answered, cpu_s = self.turn(rate)
        self.answered.append(answered)
        self.cpu_s.append(cpu_s)

    def us_per_request(self) -> list[float]:
        return [1e6 * cpu_s / answered for cpu_s, answered in zip(self.cpu_s, self.answered, strict=True)]

    def history_bytes(self) -> int:
        keys = [f"{prefix(_MODEL)}history", *(f"{prefix(_MODEL)}history:{length}" for length in LENGTHS_S)]
        with closing(redis.Redis.from_url(self.redis_url)) as client:
            return sum(client.memory_usage(key, samples=0) or 0 for key in keys)


class OpenPage:
    """Asks the gateway for what a browser asks for while it shows the first page of the dashboard.

    Leaving it raises what went wrong with a request, so that no figure is of a page that was not served.
    """

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=60.0)
        self._pool, self._ended = ThreadPoolExecutor(2), Event()

    def __enter__(self) -> OpenPage:
        self._asking = [self._pool.submit(part) for part in (self._hear, self._ask)]
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown()
        self._client.close()
        for part in self._asking:
            part.result()

    def _hear(self) -> None:
        """The table of the queues, each time it changes."""
        while not self._ended.is_set():
            with self._client.stream("GET", "/ui/live") as answer:
                answer.raise_for_status()
                for _ in answer.iter_bytes():
                    if self._ended.is_set():
                        return

    def _ask(self) -> None:
        self._client.get("/").raise_for_status()
        while not self._ended.wait(_CHARTS_EVERY_S):
            self._client.get("/ui/history").raise_for_status()


@contextmanager
def _side(folder: Path, *, history: bool, page: bool = False) -> Iterator[HistorySide]:
    plan = StackPlan(folder, free_port())
    with store_server(plan) as server:
        extra = {**stores_environment(plan, server.url), "PENSTOCK_HISTORY__ENABLED": str(history).lower()}
        with running(Processes(plan.folder, extra), []) as processes:
            roots = (server.pid, processes.start("gateway"), processes.start("worker"))
            await_ready(plan.port, processes, path="/readyz")
            with OpenPage(plan.url) if page else nullcontext():
                yield HistorySide(plan.url, server.url, roots)


def measure_history(folder: Path, *, rate: float, rounds: int) -> dict[str, float]:
    with ExitStack() as stack:
        none = stack.enter_context(_side(folder / "none", history=False))
        kept = stack.enter_context(_side(folder / "kept", history=True))
        seen = stack.enter_context(_side(folder / "seen", history=True, page=True))
        sides = deque((none, kept, seen))
        for side in sides:
            side.turn(rate)
        for _ in range(rounds):
            for side in sides:
                side.measure(rate)
            sides.rotate()
        found = {
            **_more(kept, none),
            **{f"page_{name}": value for name, value in _more(seen, none).items()},
            "cpu_us_per_request_without": statistics.median(none.us_per_request()),
            "answers_per_s_without": statistics.median(none.answered) / _TURN_S,
        }
        return {"rate_per_s": rate, "rounds": rounds, **found, "history_bytes_of_the_model": kept.history_bytes()}


def _more(side: HistorySide, none: HistorySide) -> dict[str, float]:
    """`cpu_more_share`: the median over the rounds; its quartiles say how far they differ."""
    ratios = [one / other - 1.0 for one, other in zip(side.us_per_request(), none.us_per_request(), strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "cpu_more_share": median,
        "cpu_more_share_lower_quartile": low,
        "cpu_more_share_upper_quartile": high,
        "cpu_more_share_of_sums": sum(side.cpu_s) / sum(side.answered) / (sum(none.cpu_s) / sum(none.answered)) - 1.0,
        "cpu_us_per_request": statistics.median(side.us_per_request()),
        "answers_per_s": statistics.median(side.answered) / _TURN_S,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.history", description=__doc__)
    parser.add_argument("--rate", type=float, default=1_000.0, help="requests per second")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of a turn each")
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    parser.add_argument("--state-dir", default=None, help="where the stores keep their files (default: the temp folder)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-history-", dir=options.state_dir) as folder:
        found = measure_history(Path(folder), rate=options.rate, rounds=options.rounds)
    rounded = {name: round(value, 4) for name, value in found.items()}
    options.out.write_text(json.dumps(rounded, indent=2) + "\n")
    for name, value in rounded.items():
        print(f"{name}: {value:.4g}")
    print(f"written: {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
