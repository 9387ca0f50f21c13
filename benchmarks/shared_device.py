"""How fairly two models share one device: what a flood on one does to the other's latency.

`python -m penstock.benchmarks.shared_device [--seconds 4] [--blocks 3]`, about 80 s. One caller asks the first model again and
again, in turns with the second idle and with more jobs waiting there than it can run, so that a machine whose speed drifts
slows both alike. Twice: with two cores for the worker, of which the plan gives both models both and one thread each
(`placement = "shared"`); and with one core, where whatever one model takes the other lacks. Store, gateway and load have the
cores that are left, or all if none is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import msgspec

from penstock.benchmarks.connection import parse_target, request_bytes
from penstock.benchmarks.load import Plan, run_load
from penstock.benchmarks.report import describe_machine
from penstock.benchmarks.session import check_answers
from penstock.benchmarks.stack import Processes, await_ready, free_port, running
from penstock.benchmarks.summary import percentile
from penstock.broker.connection import connect
from penstock.broker.embedded import EmbeddedServer

RESULT = Path(__file__).with_name("results") / "shared_device.json"
_STEADY, _FLOODED = "steady", "flooded"
_KEEP = 64
_POLL_S = 0.02


@dataclass(slots=True)
class Latencies:
    """Seconds per answer of the steady model."""

    lone_s: list[float] = field(default_factory=list)
    flooded_s: list[float] = field(default_factory=list)
    flood_jobs: int = 0

    def figures(self) -> dict[str, float]:
        lone_ms, flooded_ms = (percentile(sorted(found), 99.0) * 1e3 for found in (self.lone_s, self.flooded_s))
        return {
            "lone_p99_ms": round(lone_ms, 2),
            "flooded_p99_ms": round(flooded_ms, 2),
            "ratio": round(flooded_ms / lone_ms, 3),
            "lone_p50_ms": round(percentile(sorted(self.lone_s), 50.0) * 1e3, 2),
            "flooded_p50_ms": round(percentile(sorted(self.flooded_s), 50.0) * 1e3, 2),
            "lone_answers": len(self.lone_s),
            "flooded_answers": len(self.flooded_s),
            "flood_jobs": self.flood_jobs,
        }


@dataclass(frozen=True, slots=True)
class Bench:
    """The running stack: `redis_url` for the flood, `port` for the steady caller."""

    redis_url: str
    port: int
    processes: Processes

    def ask(self, seconds: float) -> list[float]:
        """One caller, one request at a time."""
        target = parse_target(f"http://127.0.0.1:{self.port}/predictions/{_STEADY}")
        request = request_bytes(target, method="POST", body=b"1", headers={"Content-Type": "application/json"})
        report = run_load(Plan(target, repeat(request), connections=1, duration_s=seconds))
        self.processes.check()
        check_answers(_STEADY, report)
        return report.latencies_s

    @contextmanager
    def flood(self, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
        """The other model's queue kept full for at least `seconds`; it is empty again at the end."""
        command = [sys.executable, "-m", "penstock.benchmarks.producer", self.redis_url, _FLOODED, "--input", "1"]
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
def stack(folder: Path, rounds: int, device: set[int]) -> Iterator[Bench]:
    """`device` are the worker's cores."""
    every = os.sched_getaffinity(0)
    others = every - device or every
    config, port = folder / "penstock.toml", free_port()
    config.write_text(_config(folder, port, rounds))
    os.sched_setaffinity(0, others)
    try:
        with EmbeddedServer(folder / "state") as server:
            processes = Processes(folder, {"PENSTOCK_CONFIG": str(config), "PENSTOCK_REDIS_URL": server.url})
            with running(processes, [["gateway"]]):
                os.sched_setaffinity(0, device)
                processes.start("worker")
                os.sched_setaffinity(0, others)
                await_ready(port, processes, path="/readyz")
                yield Bench(server.url, port, processes)
    finally:
        os.sched_setaffinity(0, every)


def _config(folder: Path, port: int, rounds: int) -> str:
    source = Path(__file__).with_name("burner.py")
    model = f'source = "{source}:Burner"\nplacement = "shared"\nmax_batch_size = 8\noptions = {{ rounds = {rounds} }}\n'
    head = f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n'
    return head + "".join(f"[models.{name}]\n{model}" for name in (_STEADY, _FLOODED))


def measure(bench: Bench, *, seconds: float, blocks: int) -> Latencies:
    found = Latencies()
    bench.ask(min(1.0, seconds))
    for _ in range(blocks):
        found.lone_s += bench.ask(seconds)
        with bench.flood(seconds + 1.0) as producer:
            found.flooded_s += bench.ask(seconds)
            assert producer.stdout is not None
            found.flood_jobs += int(producer.stdout.read())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m penstock.benchmarks.shared_device", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one block; lone and flooded blocks take turns")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20_000, help="work per item")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    cores = sorted(os.sched_getaffinity(0))
    cases: dict[str, dict[str, float]] = {}
    for name, device in {"two_cores": set(cores[-2:]), "one_core": set(cores[-1:])}.items():
        with tempfile.TemporaryDirectory() as folder, stack(Path(folder), options.rounds, device) as bench:
            cases[name] = measure(bench, seconds=options.seconds, blocks=options.blocks).figures()
        print(name, *(f"{key} {value:,.6g}" for key, value in cases[name].items()), sep="\n  ")
    content = {**cases["two_cores"], "one_core": cases["one_core"], "rounds": options.rounds, "machine": describe_machine()}
    options.out.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
