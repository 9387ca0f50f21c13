"""The cost of the history that models have: CPU time per request of gateway, worker, child and store, with it and without.

`python -m benchmarks.experiments.history [--rate 1000] [--rounds 10]` takes about five minutes and writes
`benchmarks/results/history.json`. Two stacks take the same load in turns, either of them first in turn, so that a machine
whose speed drifts slows both equally. On a machine that does other work, the result means nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import redis

from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.session import check_answers, post_plan
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.broker.history import LENGTHS_S
from penstock.broker.store.ops import prefix
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.observed.costs import read_cpu
from penstock.loadtest.stack import Processes, await_ready, free_port, running

_MODEL = "noop"
# Two beats of a worker, and two of a gateway, lie in each turn.
_TURN_S = 10.0
_CONNECTIONS = 64
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


@contextmanager
def _side(folder: Path, *, history: bool) -> Iterator[HistorySide]:
    plan = StackPlan(folder, free_port())
    with store_server(plan) as server:
        extra = {**stores_environment(plan, server.url), "PENSTOCK_STORE__HISTORY": str(history).lower()}
        with running(Processes(plan.folder, extra), []) as processes:
            roots = (server.pid, processes.start("gateway"), processes.start("worker"))
            await_ready(plan.port, processes, path="/readyz")
            yield HistorySide(plan.url, server.url, roots)


def measure_history(folder: Path, *, rate: float, rounds: int) -> dict[str, float]:
    with ExitStack() as stack:
        kept = stack.enter_context(_side(folder / "kept", history=True))
        none = stack.enter_context(_side(folder / "none", history=False))
        for side in (kept, none):
            side.turn(rate)
        for number in range(rounds):
            for side in (kept, none) if number % 2 else (none, kept):
                side.measure(rate)
        found = _figures(kept, none)
        return {"rate_per_s": rate, "rounds": rounds, **found, "history_bytes_of_the_model": kept.history_bytes()}


def _figures(kept: HistorySide, none: HistorySide) -> dict[str, float]:
    """`cpu_more_share`: the median over the pairs of turns; its quartiles say how far they differ."""
    ratios = [one / other - 1.0 for one, other in zip(kept.us_per_request(), none.us_per_request(), strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "cpu_more_share": median,
        "cpu_more_share_lower_quartile": low,
        "cpu_more_share_upper_quartile": high,
        "cpu_more_share_of_sums": sum(kept.cpu_s) / sum(kept.answered) / (sum(none.cpu_s) / sum(none.answered)) - 1.0,
        "cpu_us_per_request_with": statistics.median(kept.us_per_request()),
        "cpu_us_per_request_without": statistics.median(none.us_per_request()),
        "answers_per_s_with": statistics.median(kept.answered) / _TURN_S,
        "answers_per_s_without": statistics.median(none.answered) / _TURN_S,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.history", description=__doc__)
    parser.add_argument("--rate", type=float, default=1_000.0, help="requests per second")
    parser.add_argument("--rounds", type=int, default=10, help="pairs of turns")
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
