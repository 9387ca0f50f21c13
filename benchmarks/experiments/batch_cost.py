"""What a batch costs beside the model's own time, and what that costs a job of a model that gains nothing from large batches.

`python -m benchmarks.experiments.batch_cost [--seconds 6] [--turns 3]`. Models of 1 ms and of 5 ms of CPU time per item are
served in turns to 64 callers, in batches as the workers choose them and in batches of one (`alone`). Printed per model, as
medians of the turns: items per batch, the CPU time per job of all processes but the client, and of that what is not the
model's own, by process. `batch_us`: what a batch costs, by the difference between batches of one and those of the same model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import uvloop

from penstock.errors import PenstockError
from penstock.loadtest.details import DetailRecorder
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load_loop import LoadWire
from penstock.loadtest.stack import Processes, await_ready, free_port, running
from penstock.loadtest.workload import CallStyle

# CPU time, so that what other processes take of the core lengthens the call and not the work.
_HANDLERS = """
import time
from penstock import Handler

class OneMs(Handler):
    item_s = 0.001

    def inference(self, batch: list[bytes], /) -> list[int]:
        until = time.thread_time() + self.item_s * len(batch)
        while time.thread_time() < until:
            pass
        return [len(body) for body in batch]

class FiveMs(OneMs):
    item_s = 0.005
"""
# Class, the model's own CPU time per item, largest batch.
_MODELS = {
    "one_ms": ("OneMs", 0.001, 32),
    "one_ms_alone": ("OneMs", 0.001, 1),
    "five_ms": ("FiveMs", 0.005, 32),
    "five_ms_alone": ("FiveMs", 0.005, 1),
}
_CALLERS = 64
_WARM_UP_S = 5.0
_DRAIN_S = 60.0


class LoadedTurn(NamedTuple):
    """One load. `own_us`: CPU time per job that is not the model's, by process."""

    batch: float
    per_s: float
    own_us: dict[str, float]

    @property
    def total_us(self) -> float:
        return sum(self.own_us.values())


class ServedSpin:
    """One of the models behind `penstock up`."""

    def __init__(self, name: str, port: int, processes: Processes) -> None:
        self._item_s = _MODELS[name][1]
        self._processes = processes
        self._target = parse_target(f"http://127.0.0.1:{port}/predictions/{name}")
        self._request = request_bytes(
            self._target, method="POST", body=b"body", headers={"Content-Type": "application/octet-stream"}
        )

    def turn(self, seconds: float) -> LoadedTurn:
        recorder = DetailRecorder(CallStyle.SYNC, (b"", b""), sample=0, seed=0, since=0.0)
        loop = ClosedLoop(LoadWire(self._target), repeat(self._request), recorder)
        before = self._processes.read_cpu()
        took_s = uvloop.run(loop.run(_CALLERS, seconds, drain_s=_DRAIN_S))
        spent = self._processes.read_cpu().since(before)
        if loop.unfinished or recorder.bad:
            raise PenstockError(f"{loop.unfinished} requests had no answer, {recorder.samples.errors()} failed")
        own_us = {stage: 1e6 * cpu_s / recorder.good for stage, cpu_s in spent.items() if stage != "client"}
        own_us["child"] -= 1e6 * self._item_s
        return LoadedTurn(len(recorder.sizes) / sum(1 / size for size in recorder.sizes), recorder.good / took_s, own_us)


def config_text(port: int, folder: Path) -> str:
    models = "".join(
        f'[models.{name}]\nsource = "{folder / "spinning.py"}:{handler}"\nthreads = 1\nmax_batch_size = {most}\n'
        for name, (handler, _, most) in _MODELS.items()
    )
    return f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n{models}'


def measure(folder: Path, *, seconds: float, turns: int) -> dict[str, list[LoadedTurn]]:
    port, config = free_port(), folder / "penstock.toml"
    config.write_text(config_text(port, folder))
    (folder / "spinning.py").write_text(_HANDLERS)
    with running(Processes(folder, {"PENSTOCK_CONFIG": str(config)}), [["up", str(config)]]) as processes:
        await_ready(port, processes, path="/readyz")
        served = {name: ServedSpin(name, port, processes) for name in _MODELS}
        for one in served.values():
            one.turn(_WARM_UP_S)
        found: dict[str, list[LoadedTurn]] = {name: [] for name in served}
        for _ in range(turns):
            for name, one in served.items():
                found[name].append(one.turn(seconds))
    return found


def figures(turns: Sequence[LoadedTurn]) -> dict[str, float]:
    """Medians. Pure."""
    stages = {stage: statistics.median(turn.own_us[stage] for turn in turns) for stage in turns[0].own_us}
    return {
        "items_per_batch": round(statistics.median(turn.batch for turn in turns), 1),
        "jobs_per_s": round(statistics.median(turn.per_s for turn in turns), 1),
        "own_us_per_job": round(statistics.median(turn.total_us for turn in turns)),
        **{stage: round(value) for stage, value in stages.items()},
    }


def batch_us(alone: Sequence[LoadedTurn], batched: Sequence[LoadedTurn]) -> float:
    """The CPU time that a batch costs whatever its size: each job of a batch of n pays an n-th of it. Pure."""
    found = [
        (one.total_us - other.total_us) / (1 / one.batch - 1 / other.batch)
        for one, other in zip(alone, batched, strict=True)
        if other.batch > 2 * one.batch
    ]
    return round(statistics.median(found)) if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-batch-") as folder:
        found = measure(Path(folder), seconds=args.seconds, turns=args.turns)
    for name, turns in found.items():
        print(name, json.dumps(figures(turns)))
    for name in ("one_ms", "five_ms"):
        print(f"{name} batch_us {batch_us(found[f'{name}_alone'], found[name]):g}")


if __name__ == "__main__":
    main()
