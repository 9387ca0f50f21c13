"""How fast one program gets the outputs of many rows, by each call of the Python client, in turns.

`python -m benchmarks.client_ways [--rows 2000] [--rounds 2] [--state-dir FOLDER]`. The model echoes its input, so
what remains is the cost of the way itself; client and stack share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.stack import StackPlan, whole_stack
from penstock import AsyncClient, Client
from penstock.loadtest.stack import free_port

Rows = list[dict[str, int]]
_THREADS = 16


def predict_each(client: Client, rows: Rows) -> list[Any]:
    return [client.predict("noop", row) for row in rows]


def predict_in_threads(client: Client, rows: Rows) -> list[Any]:
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda row: client.predict("noop", row), rows))


def submit_many(client: Client, rows: Rows) -> list[Any]:
    return [handle.result() for handle in client.submit_many("noop", rows)]


def map_(client: Client, rows: Rows) -> list[Any]:
    return list(client.map("noop", rows))


def map_asyncio(client: Client, rows: Rows) -> list[Any]:
    async def outputs() -> list[Any]:
        async with AsyncClient(client.base_url) as other:
            return [output async for output in other.map("noop", rows)]

    return asyncio.run(outputs())


def run(client: Client, rows: Rows) -> list[Any]:
    made = client.run("noop", rows)
    made.wait()
    return list(made)


WAYS: dict[str, Callable[[Client, Rows], list[Any]]] = {
    "predict in a loop": predict_each,
    "predict in 16 threads": predict_in_threads,
    "submit_many, then result": submit_many,
    "map": map_,
    "map of AsyncClient": map_asyncio,
    "run": run,
}


def rows_per_s(client: Client, way: Callable[[Client, Rows], list[Any]], count: int) -> float:
    """Raises `RuntimeError` if an output is missing or in another's place."""
    rows: Rows = [{"x": number} for number in range(count)]
    began = time.monotonic()
    if way(client, rows) != rows:
        raise RuntimeError(f"{way.__name__} lost outputs or changed their order")
    return count / (time.monotonic() - began)


def measure(folder: Path, counts: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Rows per second of each way for each number of rows: the median of the rounds."""
    plan = StackPlan(folder, free_port())
    found: dict[str, list[list[float]]] = {name: [[] for _ in counts] for name in WAYS}
    with whole_stack(plan), Client(plan.url) as client:
        for way in WAYS.values():
            rows_per_s(client, way, 50)
        for _ in range(rounds):
            # In turns, so that a machine whose speed drifts slows all ways equally.
            for name, way in WAYS.items():
                for place, count in enumerate(counts):
                    found[name][place].append(rows_per_s(client, way, count))
    return {name: [median(readings) for readings in all_] for name, all_ in found.items()}


def table(found: dict[str, list[float]], counts: Sequence[int]) -> list[str]:
    """Markdown: one line per way, one column per number of rows."""
    head = ["| rows/s with | " + " | ".join(f"{count:,} rows" for count in counts) + " |", "|---" * (len(counts) + 1) + "|"]
    return head + [f"| {name} | " + " | ".join(f"{rate:,.0f}" for rate in rates) + " |" for name, rates in found.items()]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_ways", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 2_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--state-dir", default=None, help="where the store keeps its files: a real disk")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-ways-", dir=options.state_dir) as folder:
        print("\n".join(table(measure(Path(folder), options.rows, options.rounds), options.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
