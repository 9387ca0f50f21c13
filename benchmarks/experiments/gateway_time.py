"""Where a gateway process spends its time on answer-now requests: shares by the code that runs, from the profiler.

`python -m benchmarks.experiments.gateway_time [--connections 64] [--seconds 20]`. The profiler slows Python code more than
calls of C, so the shares are rough: enough to see what a part could gain at most if it cost nothing.
"""

from __future__ import annotations

import argparse
import pstats
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.session import check_answers, post_plan
from benchmarks.stack import StackPlan, store_server, stores_environment
from penstock.loadtest.generator.load import run_load
from penstock.loadtest.stack import Processes, await_ready, environment, free_port, running

_END_S = 60.0
_SHOWN = 0.01
_LIBRARIES = ("uvicorn", "asyncio", "redis", "prometheus_client")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-gateway-time-") as folder:
        found = profiled(Path(folder), connections=options.connections, seconds=options.seconds)
    for name, share in shares(found).most_common():
        if share >= _SHOWN:
            print(f"{share:6.1%}  {name}")


def profiled(folder: Path, *, connections: int, seconds: float) -> pstats.Stats:
    """What a gateway did while it was loaded."""
    plan, out = StackPlan(folder, free_port()), folder / "gateway.prof"
    with store_server(plan) as server:
        extra = stores_environment(plan, server.url)
        with running(Processes(folder, extra), [["worker"]]) as processes, _gateway(folder, out, extra):
            await_ready(plan.port, processes, path="/readyz")
            load = post_plan(f"{plan.url}/predictions/noop", NOOP_BODY, connections=connections, duration_s=seconds)
            check_answers("gateway", run_load(load))
    return pstats.Stats(str(out))


@contextmanager
def _gateway(folder: Path, out: Path, extra: dict[str, str]) -> Iterator[None]:
    command = [sys.executable, "-m", "cProfile", "-o", str(out), "-m", "penstock.gateway"]
    with (folder / "gateway.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment(extra), stdout=log, stderr=log, cwd=folder)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_END_S)


def shares(found: pstats.Stats) -> Counter[str]:
    """By what runs, its share of the time. Calls of C count for who calls them; what only the start calls does not count."""
    spent: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, callers) in found.stats.items():  # type: ignore[attr-defined]
        calls = [(caller, row[2]) for caller, row in callers.items()] if file == "~" else [((file, 0, name), own)]
        for (place, _, function), seconds in calls:
            part = _part(place)
            if part and function != "<module>":
                spent[part] += seconds
    whole = sum(spent.values())
    return Counter({name: seconds / whole for name, seconds in spent.items()})


def _part(file: str) -> str:
    """The room of the tree, or the library; empty for all else."""
    if "/penstock/" in file:
        return "penstock/" + "/".join(file.rpartition("/penstock/")[2].split("/")[:2])
    return next((name for name in _LIBRARIES if f"/{name}/" in file), "")


if __name__ == "__main__":
    main()
