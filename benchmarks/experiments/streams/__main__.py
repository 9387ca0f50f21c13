"""`python -m benchmarks.experiments.streams`: streams of penstock and of LitServe on one machine, in turns.

64 callers read streams of 32 chunks; a step of the model takes 20 ms for all streams of its call. Writes
benchmarks/results/streams.json. LitServe runs from the environment that `python -m benchmarks.peers setup litserve` makes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.experiments.streams.reading import StreamReadings, StreamRequest, read_for
from benchmarks.peers.environments import COMMON, DEFINITIONS
from benchmarks.peers.server import process_cpu_s
from penstock.errors import PenstockError
from penstock.loadtest.stack import free_port

RESULTS = Path(__file__).resolve().parents[2] / "results" / "streams.json"
_LITSERVE = DEFINITIONS / "litserve" / "streams.py"
CALLERS, STEPS, STEP_S = 64, 32, 0.02
_INPUT = {"steps": STEPS, "step_s": STEP_S}
_HANDLER = """
import steps
from penstock import Handler


class Tell(Handler):
    def inference(self, batch: list[dict]):
        yield from steps.tell(batch)
"""
_READY_S = 60.0
# penstock doubles its batches up to the size of all callers, in runs of two thirds of a second; both servers get this time.
_WARM_S = 6.0
_JSON_LINES = "application/x-ndjson"
OWN = StreamRequest("/predictions/tell", msgspec.json.encode(_INPUT), b'"event":"chunk"', _JSON_LINES)
LITSERVE = StreamRequest("/predict", msgspec.json.encode(_INPUT), b" token")
# What the callers could read if nothing but the model took time.
LIMIT_PER_S = CALLERS / STEP_S


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.streams", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("build/peers"), help="where the environments are")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    turns: dict[str, list[dict[str, float]]] = {"penstock": [], "litserve": []}
    for _ in range(options.rounds):
        for name, start, asked in (("penstock", _own, OWN), ("litserve", _litserve(options.folder), LITSERVE)):
            turns[name].append(measure(start, asked, options.seconds))
            print(f"{name}: {turns[name][-1]}", flush=True)
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result(turns)), indent=2) + b"\n")


def result(turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """The median of each figure over the turns of each server, and penstock's over LitServe's."""
    shown = {
        name: {key: round(statistics.median(turn[key] for turn in found), 3) for key in found[0]}
        for name, found in turns.items()
    }
    own, other = shown["penstock"], shown["litserve"]
    return {
        "callers": CALLERS,
        "chunks_per_stream": STEPS,
        "step_ms": STEP_S * 1e3,
        "limit_chunks_per_s": LIMIT_PER_S,
        **shown,
        "chunks_vs_litserve": round(own["chunks_per_s"] / other["chunks_per_s"], 3),
        "first_chunk_vs_litserve": round(own["first_chunk_p50_ms"] / other["first_chunk_p50_ms"], 3),
    }


def measure(start: Callable[[Path, int], list[str]], asked: StreamRequest, busy_s: float) -> dict[str, float]:
    """The figures of one turn. Raises `PenstockError` if the server does not stream."""
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        port = free_port()
        with _running(start(Path(folder), port), Path(folder), asked) as process:
            _await_stream(port, asked, Path(folder))
            owned = [process, *process.children(recursive=True)]
            before = sum(map(process_cpu_s, owned))
            seen = asyncio.run(read_for(port, asked, callers=CALLERS, chunks_each=STEPS, warm_s=_WARM_S, busy_s=busy_s))
            spent_s = sum(map(process_cpu_s, owned)) - before
    return _figures(seen, busy_s, spent_s)


def _figures(seen: StreamReadings, busy_s: float, spent_s: float) -> dict[str, float]:
    first = sorted(seen.first_s)
    return {
        "chunks_per_s": seen.chunks / busy_s,
        "share_of_limit": seen.chunks / busy_s / LIMIT_PER_S,
        "first_chunk_p50_ms": statistics.median(first) * 1e3,
        "first_chunk_p99_ms": first[int(0.99 * (len(first) - 1))] * 1e3,
        "cpu_us_per_chunk": spent_s / (seen.streams * STEPS) * 1e6,
        "broken_streams": float(seen.broken),
    }


def _own(folder: Path, port: int) -> list[str]:
    (folder / "tell.py").write_text(_HANDLER)
    (folder / "penstock.toml").write_text(
        f'[store]\nstate_dir = "{folder / "state"}"\n[gateway]\nport = {port}\n'
        f'[models.tell]\nsource = "{folder / "tell.py"}:Tell"\nmax_batch_size = {CALLERS}\n'
    )
    return [sys.executable, "-m", "penstock", "up", str(folder / "penstock.toml")]


def _litserve(environments: Path) -> Callable[[Path, int], list[str]]:
    python = environments / "litserve" / "bin" / "python"
    if not python.exists():
        raise PenstockError(f"{python} is missing: python -m benchmarks.peers setup litserve")
    return lambda folder, port: [str(python.absolute()), str(_LITSERVE), str(port), str(CALLERS)]


@contextmanager
def _running(command: list[str], folder: Path, asked: StreamRequest) -> Iterator[psutil.Process]:
    with (folder / "server.log").open("wb") as log:
        started = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=_environment(asked))
    process = psutil.Process(started.pid)
    try:
        yield process
    finally:
        owned = process.children(recursive=True)
        started.terminate()
        started.wait(30.0)
        for left in psutil.wait_procs(owned, timeout=5.0)[1]:
            left.kill()


def _environment(asked: StreamRequest) -> dict[str, str]:
    """Only penstock keeps PYTHONPATH, because it may run from a checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
    path = os.pathsep.join([str(COMMON), *([kept.get("PYTHONPATH", "")] if asked is OWN else [])])
    return kept | {"PYTHONPATH": path}


def _await_stream(port: int, asked: StreamRequest, folder: Path) -> None:
    """Until one stream has come whole."""
    give_up_at = time.monotonic() + _READY_S
    while time.monotonic() < give_up_at:
        try:
            seen = asyncio.run(read_for(port, asked, callers=1, chunks_each=STEPS, warm_s=0.0, busy_s=0.1))
        except OSError:
            seen = StreamReadings()
        if seen.streams and not seen.broken:
            return
        time.sleep(0.3)
    raise PenstockError(f"no stream within {_READY_S:.0f} s: {(folder / 'server.log').read_text()[-1_500:]}")


if __name__ == "__main__":
    main()
