"""How fairly two models share one device: what a flood on one does to the other's latency.

`python -m benchmarks.models.shared_device [--seconds 4] [--blocks 5]` takes about 2 minutes. One caller sends requests to the
first model, in turns while the second model is idle and while the second model has more jobs than it can run, so that a machine
whose speed drifts slows both equally. There are two cases: two cores for the worker, which both models share with one thread
each (`placement = "shared"`), and one core, where the models take time from each other. Store, gateway and load have the
remaining cores, or all if none remains.

Target of both cases: in the median block, the flood at most doubles the first model's p99. A block is one turn of each kind.
The percentiles and `ratio` are over the answers of all blocks; `ratio` is not judged. If other processes took more than a tenth
of the machine in a block, the figures are `doubtful`: measure again when the machine is idle. The exit status is 1 if a target
was missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.models.figures import FOREIGN_SHARE
from benchmarks.session import check_answers
from penstock.broker.store.connection import connect
from penstock.embedded.server import EmbeddedServer
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load import LoadSpec, run_load
from penstock.loadtest.generator.summary import percentile
from penstock.loadtest.observed.costs import Usage, read_usage
from penstock.loadtest.observed.machine import describe_machine
from penstock.loadtest.stack import Processes, await_ready, free_port, running

RESULT = Path(__file__).parents[1] / "results" / "shared_device.json"
TARGET = 2.0
_STEADY, _FLOODED = "steady", "flooded"
_KEEP = 64
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class FloodTurn:
    """Latencies of the steady model, alone and beside a flood of `flood_jobs`. `foreign_share`: see `Usage`."""

    lone_s: Sequence[float]
    flooded_s: Sequence[float]
    flood_jobs: int = 0
    foreign_share: float = 0.0

    @property
    def ratio(self) -> float:
        return _ms(self.flooded_s, 99.0) / _ms(self.lone_s, 99.0)


def figures(blocks: Sequence[FloodTurn]) -> dict[str, Any]:
    """One case in the file; `met` depends on the median of the blocks' ratios."""
    whole = FloodTurn([s for block in blocks for s in block.lone_s], [s for block in blocks for s in block.flooded_s])
    middle, foreign = median(block.ratio for block in blocks), max(block.foreign_share for block in blocks)
    return {
        "lone_p99_ms": round(_ms(whole.lone_s, 99.0), 2),
        "flooded_p99_ms": round(_ms(whole.flooded_s, 99.0), 2),
        "ratio": round(whole.ratio, 3),
        "lone_p50_ms": round(_ms(whole.lone_s, 50.0), 2),
        "flooded_p50_ms": round(_ms(whole.flooded_s, 50.0), 2),
        "lone_answers": len(whole.lone_s),
        "flooded_answers": len(whole.flooded_s),
        "flood_jobs": sum(block.flood_jobs for block in blocks),
        "block_ratios": [round(block.ratio, 3) for block in blocks],
        "median_ratio": round(middle, 3),
        "target": TARGET,
        "met": middle <= TARGET,
        "foreign_cpu_share": round(foreign, 3),
        "doubtful": foreign > FOREIGN_SHARE,
    }


def _ms(latencies_s: Sequence[float], share: float) -> float:
    return percentile(sorted(latencies_s), share) * 1e3


@dataclass(frozen=True, slots=True)
class SharedStack:
    """A running stack: `redis_url` for the flood, `port` for the caller, and `roots`, the processes whose CPU time counts."""

    redis_url: str
    port: int
    processes: Processes
    roots: Sequence[int]

    def usage(self) -> Usage:
        return read_usage(self.roots)

    def ask(self, seconds: float) -> list[float]:
        """Sends one request at a time; the latencies."""
        target = parse_target(f"http://127.0.0.1:{self.port}/predictions/{_STEADY}")
        request = request_bytes(target, method="POST", body=b"1", headers={"Content-Type": "application/json"})
        report = run_load(LoadSpec(target, repeat(request), connections=1, duration_s=seconds))
        self.processes.check()
        check_answers(_STEADY, report)
        return report.latencies_s

    @contextmanager
    def flood(self, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
        """Keeps the other model's queue full for at least `seconds`; the queue is empty again at the end."""
        command = [sys.executable, "-m", "benchmarks.main_path.producer", self.redis_url, _FLOODED, "--input", "1"]
        options = ["--seconds", str(seconds), "--keep", str(_KEEP)]
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as producer:
            self._await_depth(least=_KEEP)
            yield producer
            producer.wait()
        self._await_depth(least=0)

    def _await_depth(self, *, least: int) -> None:
        probe, queue = connect(self.redis_url), f"penstock.{{{_FLOODED}}}"
        while (int(probe.llen(queue)) < least) if least else int(probe.llen(queue)):
            self.processes.check()
            time.sleep(_POLL_S)


@contextmanager
def stack(folder: Path, rounds: int, device: set[int]) -> Iterator[SharedStack]:
    """`device`: the worker's cores."""
    every = os.sched_getaffinity(0)
    others = every - device or every
    config, port = folder / "penstock.toml", free_port()
    config.write_text(_config(folder, port, rounds))
    os.sched_setaffinity(0, others)
    try:
        with EmbeddedServer(folder / "state") as server:
            processes = Processes(folder, {"PENSTOCK_CONFIG": str(config), "PENSTOCK_REDIS_URL": server.url})
            with running(processes, []):
                gateway = processes.start("gateway")
                os.sched_setaffinity(0, device)
                worker = processes.start("worker")
                os.sched_setaffinity(0, others)
                await_ready(port, processes, path="/readyz")
                yield SharedStack(server.url, port, processes, [server.pid or 0, gateway, worker])
    finally:
        os.sched_setaffinity(0, every)


def _config(folder: Path, port: int, rounds: int) -> str:
    source = Path(__file__).with_name("burner.py")
    model = f'source = "{source}:Burner"\nplacement = "shared"\nmax_batch_size = 8\noptions = {{ rounds = {rounds} }}\n'
    head = f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n'
    return head + "".join(f"[models.{name}]\n{model}" for name in (_STEADY, _FLOODED))


def measure(bench: SharedStack, *, seconds: float, blocks: int) -> list[FloodTurn]:
    bench.ask(min(1.0, seconds))
    return [_block(bench, seconds) for _ in range(blocks)]


def _block(bench: SharedStack, seconds: float) -> FloodTurn:
    before = bench.usage()
    lone_s = bench.ask(seconds)
    with bench.flood(seconds + 1.0) as producer:
        flooded_s = bench.ask(seconds)
        assert producer.stdout is not None
        jobs = int(producer.stdout.read())
    return FloodTurn(lone_s, flooded_s, jobs, bench.usage().foreign_share(before))


def main(arguments: Sequence[str] | None = None) -> int:
    """0: both cases met the target; 1: a case missed it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.models.shared_device", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one turn")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20_000, help="work per item")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    cases: dict[str, dict[str, Any]] = {}
    for name, device in {"two_cores": set(cores[-2:]), "one_core": set(cores[-1:])}.items():
        with tempfile.TemporaryDirectory() as folder, stack(Path(folder), options.rounds, device) as bench:
            cases[name] = figures(measure(bench, seconds=options.seconds, blocks=options.blocks))
        print(name, *(f"{key} {_words(value)}" for key, value in cases[name].items()), verdict(cases[name]), sep="\n  ")
    content = {**cases["two_cores"], "one_core": cases["one_core"], "rounds": options.rounds, "machine": describe_machine()}
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    return 0 if all(case["met"] for case in cases.values()) else 1


def verdict(case: Mapping[str, Any]) -> str:
    """The rule and its outcome in one line."""
    doubt = ", doubtful: other processes used the machine" if case["doubtful"] else ""
    return f"{'met' if case['met'] else 'MISSED'}{doubt}: median of the blocks' ratios of p99 at most {TARGET:g}"


def _words(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
