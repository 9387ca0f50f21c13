"""A plain handler of a user's own over texts of mixed length: over HTTP, against the best loop without penstock.

`python -m benchmarks.models.own_handler [--seconds 4] [--turns 4]`. The loop has all texts at once, sorts them by length and
runs them on one thread in calls of one size, the fastest on this machine. A server that chooses the size by the texts' lengths
can be above it. The loop and the servings with `cost` and with nothing declared take turns. `ratio`: the rate over HTTP divided
by the loop's, as the median of the turns; `cpu_ratio`: the loop's CPU seconds per text divided by those of the model's process,
which other load on the machine changes less. `idle`: the share of the time in which the thread with the device had nothing to
run; `waits`: the share in which it could have run, and other processes had its core.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import uvloop

from benchmarks.models.length_buckets import mixed_texts
from penstock.errors import PenstockError
from penstock.handlers.load import load
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load_loop import LoadWire, ResponseRecorder
from penstock.loadtest.observed.costs import CpuReading
from penstock.loadtest.stack import Processes, await_ready, free_port, running

_DEFAULT_OUT = Path("benchmarks/results/own_handler.json")
_HANDLERS = Path(__file__).with_name("padded_texts.py")
_SERVED = {"cost": "CostedTexts", "plain": "PlainTexts"}
_CALLS = (1, 2, 4, 8, 16, 32)
_TEXTS = 1_024
_CALLERS = 64
_MOST = 32
_WARM_UP_S = 12.0
_DRAIN_S = 60.0
# Numeric libraries read these when they are loaded.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class SortedLoop:
    """All texts, sorted by length, in calls of one size: of all sizes the one that took the least time in one pass each."""

    def __init__(self, texts: Sequence[str]) -> None:
        handler: Any = load(f"{_HANDLERS}:PlainTexts", "loop").handler
        self._handler = handler
        self._ordered = sorted(handler.preprocess(list(texts)), key=len)
        self.size = 1
        self.turn()
        self.size = max(_CALLS, key=self._rate)

    def _rate(self, size: int) -> float:
        self.size = size
        return self.turn().per_s

    def turn(self) -> TextTurn:
        """One pass over the texts."""
        began, cpu, count = time.perf_counter(), time.process_time(), len(self._ordered)
        for at in range(0, count, self.size):
            self._handler.inference(self._ordered[at : at + self.size])
        return TextTurn(count / (time.perf_counter() - began), (time.process_time() - cpu) / count)


class TextTurn(NamedTuple):
    """Texts per second, CPU seconds per text of the process, and the shares of its first thread as above."""

    per_s: float
    cpu_s: float
    idle: float = 0.0
    waits: float = 0.0


class Scheduled(NamedTuple):
    """Seconds that the first thread of a process, which has the device in a child, has run, and has waited for a core."""

    ran_s: float
    waited_s: float

    @classmethod
    def read(cls, pid: int) -> Scheduled:
        ran_ns, waited_ns, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()
        return cls(int(ran_ns) / 1e9, int(waited_ns) / 1e9)


class Served:
    """One handler behind `penstock up`."""

    def __init__(self, name: str, port: int, processes: Processes, texts: Sequence[str]) -> None:
        self._name = name
        self._processes = processes
        target = parse_target(f"http://127.0.0.1:{port}/predictions/{name}")
        self._target = target
        self._requests = [
            request_bytes(target, method="POST", body=text.encode(), headers={"Content-Type": "text/plain"}) for text in texts
        ]
        self._at = 0

    def turn(self, seconds: float) -> TextTurn:
        # The next turn goes on where this one ended, so that all texts are asked for equally often.
        rest = self._requests[self._at :] + self._requests[: self._at]
        loop = ClosedLoop(LoadWire(self._target), cycle(rest), ResponseRecorder())
        child = self._child()
        scheduled, before, began = Scheduled.read(child), self._processes.read_cpu(), time.perf_counter()
        uvloop.run(loop.run(_CALLERS, seconds, drain_s=_DRAIN_S))
        count, took, after = len(loop.recorder.samples.statuses), time.perf_counter() - began, Scheduled.read(child)
        if loop.unfinished or loop.recorder.samples.errors():
            raise PenstockError(f"{loop.unfinished} requests had no answer, {loop.recorder.samples.errors()} failed")
        self._at = (self._at + count) % len(self._requests)
        ran, waits = (after.ran_s - scheduled.ran_s) / took, (after.waited_s - scheduled.waited_s) / took
        return TextTurn(count / took, _model_cpu_s(self._processes.read_cpu(), before) / count, 1.0 - ran - waits, waits)

    def _child(self) -> int:
        """The process id of the model's process, whose command line ends with the model's name."""
        below = [child for pid in self._processes.pids for child in psutil.Process(pid).children(recursive=True)]
        commands = {one.pid: one.cmdline() for one in below}
        named = [pid for pid, words in commands.items() if "penstock.workers.child" in words and words[-1] == self._name]
        return int(named[0])


def _model_cpu_s(after: CpuReading, before: CpuReading) -> float:
    return after.since(before).get("child", 0.0)


def config_text(port: int, folder: Path) -> str:
    """A penstock.toml with both handlers, which share one core: they are never asked at the same time."""
    models = "".join(
        f'[models.{name}]\nsource = "{_HANDLERS}:{handler}"\nthreads = 1\nmax_batch_size = {_MOST}\nmax_queue_depth = 100000\n'
        for name, handler in _SERVED.items()
    )
    return f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n{models}'


def measure(folder: Path, *, seconds: float, turns: int) -> dict[str, Any]:
    """The rates, and the ratios to the loop of the same turn."""
    texts, port = mixed_texts(_TEXTS), free_port()
    config = folder / "penstock.toml"
    config.write_text(config_text(port, folder))
    with running(Processes(folder, {"PENSTOCK_CONFIG": str(config)}), [["up", str(config)]]) as processes:
        await_ready(port, processes, path="/readyz")
        loop = SortedLoop(texts)
        served = {name: Served(name, port, processes, texts) for name in _SERVED}
        loop.turn()
        for one in served.values():
            one.turn(_WARM_UP_S)
        found: dict[str, list[TextTurn]] = {"loop": [], **{name: [] for name in served}}
        for _ in range(turns):
            found["loop"].append(loop.turn())
            for name, one in served.items():
                found[name].append(one.turn(seconds))
    return {"loop_call": loop.size, **figures(found)}


def figures(found: dict[str, list[TextTurn]]) -> dict[str, Any]:
    """Medians over the turns. Pure."""
    loops = found["loop"]
    named: dict[str, Any] = {"loop_items_per_s": round(statistics.median(loop.per_s for loop in loops), 1)}
    for name in _SERVED:
        pairs = list(zip(found[name], loops, strict=True))
        named[f"{name}_items_per_s"] = round(statistics.median(mine.per_s for mine, _ in pairs), 1)
        named[f"own_handler_{name}_ratio"] = round(statistics.median(mine.per_s / best.per_s for mine, best in pairs), 3)
        named[f"own_handler_{name}_cpu_ratio"] = round(statistics.median(best.cpu_s / mine.cpu_s for mine, best in pairs), 3)
        named[f"own_handler_{name}_idle"] = round(statistics.median(mine.idle for mine, _ in pairs), 3)
        named[f"own_handler_{name}_waits"] = round(statistics.median(mine.waits for mine, _ in pairs), 3)
    return named


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a turn over HTTP")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    args = parser.parse_args()
    if any(os.environ.get(name) != count for name, count in _ONE_THREAD.items()):
        # Too late for this process: numpy is loaded.
        command = [sys.executable, "-m", "benchmarks.models.own_handler", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, **_ONE_THREAD})
    with tempfile.TemporaryDirectory(prefix="penstock-own-") as folder:
        found = measure(Path(folder), seconds=args.seconds, turns=args.turns)
    print(json.dumps(found, indent=2))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
