"""The speed and the cost of runs over files, compared with the same model in a loop without penstock.

`python -m benchmarks.bulk [--quick] [--only embed|digits|cheap|memory|online]` takes about 9 minutes. It embeds texts and reads
digits, each in turns with the best loop; runs a model that costs almost nothing; reads the peak memory of driver and store at
10^5 and 10^6 rows; and runs at full speed beside online traffic. The exit status is 1 if a target was missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.bulk.environment import BenchEnvironment, Model, bench_environment, peak_bytes
from benchmarks.bulk.inputs import write_images, write_numbers, write_texts
from benchmarks.bulk.online_traffic import measure_shared_slot
from benchmarks.bulk.ratio import compare_with_loops
from benchmarks.stack import EXAMPLES, on_memory
from penstock.loadtest.observed.machine import describe_machine

RESULT = Path(__file__).parents[1] / "results" / "bulk.json"
EMBEDDINGS = Model("embeddings", str(EXAMPLES / "embeddings" / "handler.py") + ":Embeddings", lines=("max_batch_size = 256",))
DIGITS = Model("digits", str(EXAMPLES / "digits" / "handler.py") + ":Digits", lines=("max_batch_size = 256",))
CHEAP = Model("cheap", str(Path(__file__).with_name("cheap.py")) + ":Cheap", slots=1, lines=("max_batch_size = 256",))
ALONE = Model("embeddings", EMBEDDINGS.source, slots=1, lines=("max_batch_size = 32",))


@dataclass(frozen=True, slots=True)
class FigureTarget:
    """A figure must be at least `bound` if `least`, otherwise at most `bound`."""

    bound: float
    least: bool
    words: str

    def met(self, value: float) -> bool:
        return value >= self.bound if self.least else value <= self.bound


TARGETS = {
    "embed_ratio": FigureTarget(0.95, True, "texts embedded by a run, divided by those of the best loop"),
    "digits_ratio": FigureTarget(0.95, True, "digits read by a run, divided by those of the best loop"),
    "cheap_rows_per_s": FigureTarget(100_000, True, "rows per second of a model of 1 ms per 256, Parquet to Parquet"),
    "rss_growth_ratio": FigureTarget(
        1.10, False, "peak memory at 10^6 rows divided by that at 10^5, of driver or store, whichever grew more"
    ),
    "online_p99_ratio": FigureTarget(1.5, False, "online p99 beside a run, divided by that without"),
    "bulk_share": FigureTarget(0.80, True, "the run's share of what online traffic leaves of the slot"),
}
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scale:
    texts: int
    images: int
    numbers: int
    memory: tuple[int, int]
    seconds: float
    rounds: int


FULL = Scale(20_000, 200_000, 1_000_000, (100_000, 1_000_000), 8.0, 3)
QUICK = Scale(1_000, 2_000, 50_000, (20_000, 50_000), 2.0, 1)


class BulkSession:
    """Measures part by part. `details` holds the measurements from which the figures are computed."""

    def __init__(self, folder: Path, scale: Scale) -> None:
        self._folder = folder
        self._scale = scale
        self.details: dict[str, Any] = {}

    def embed(self) -> Figures:
        file = self._folder / "texts.jsonl"
        write_texts(file, self._scale.texts)
        with bench_environment(self._folder / "embed", [EMBEDDINGS]) as bench:
            found = compare_with_loops(bench, EMBEDDINGS, file, "--column", "text", turns=1 + (self._scale is FULL))
        self.details["embed"] = found.figures()
        return {"embed_ratio": found.ratio}

    def digits(self) -> Figures:
        file = self._folder / "images.parquet"
        write_images(file, self._scale.images)
        with bench_environment(self._folder / "digits", [DIGITS]) as bench:
            found = compare_with_loops(bench, DIGITS, file, "--column", "image", turns=1 + 2 * (self._scale is FULL))
        self.details["digits"] = found.figures()
        return {"digits_ratio": found.ratio}

    def cheap(self) -> Figures:
        with bench_environment(self._folder / "cheap", [CHEAP]) as bench:
            rates = [self._numbers(bench, self._scale.numbers)[0] for _ in range(2)]
        self.details["cheap"] = {"turns": [round(rate) for rate in rates]}
        return {"cheap_rows_per_s": max(rates)}

    def memory(self) -> Figures:
        """A new store for each size, so that its peak memory is that of one run."""
        peaks: dict[int, tuple[int, int]] = {}
        for rows in self._scale.memory:
            with bench_environment(self._folder / f"memory-{rows}", [CHEAP]) as bench:
                _, driver = self._numbers(bench, rows)
                peaks[rows] = driver, peak_bytes(bench.store_pid)
        few, many = (peaks[rows] for rows in self._scale.memory)
        self.details["memory"] = {str(rows): {"driver_bytes": d, "store_bytes": s} for rows, (d, s) in peaks.items()}
        return {"rss_growth_ratio": max(after / before for before, after in zip(few, many, strict=True))}

    def _numbers(self, bench: BenchEnvironment, rows: int) -> tuple[float, int]:
        file = self._folder / f"numbers-{rows}.parquet"
        if not file.exists():
            write_numbers(file, rows)
        ran = bench.run(CHEAP.name, file, self._folder / "numbers.out.parquet")
        return ran.rows_per_s, ran.driver_peak_bytes

    def online(self) -> Figures:
        """The slot has a core of its own; driver, gateway, store and callers share the other cores."""
        file = self._folder / "more-texts.jsonl"
        write_texts(file, 40_000)
        with bench_environment(self._folder / "online", [ALONE], worker_cores={0}) as bench:
            found = measure_shared_slot(bench, ALONE, file, seconds=self._scale.seconds, rounds=self._scale.rounds)
        self.details["online"] = found.figures()
        return {"online_p99_ratio": found.p99_ratio, "bulk_share": found.bulk_share}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows: shows that everything runs, but figures mean nothing")
    parser.add_argument("--only", choices=["embed", "digits", "cheap", "memory", "online"])
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bulk-", dir=_disk()) as folder:
        session = BulkSession(Path(folder), QUICK if options.quick else FULL)
        parts: dict[str, Callable[[], Figures]] = {
            name: getattr(session, name) for name in ("embed", "digits", "cheap", "memory", "online")
        }
        for name, part in parts.items():
            if options.only in (None, name):
                figures |= part()
                Console(stderr=True).print(name, session.details[name])
    _print(figures)
    store(options.out, figures, session.details)
    return 0 if all(TARGETS[name].met(value) for name, value in figures.items()) else 1


def _disk() -> str:
    """The temporary folder; the current folder if the temporary one lies in memory, where syncs cost nothing."""
    return str(Path.cwd()) if on_memory(Path(tempfile.gettempdir())) else tempfile.gettempdir()


def _print(figures: Figures) -> None:
    table = Table("figure", "what", "value", "target", "")
    for name, value in figures.items():
        target = TARGETS[name]
        bound = f"{'>=' if target.least else '<='} {target.bound:,g}"
        table.add_row(name, target.words, f"{value:,.4g}", bound, "met" if target.met(value) else "MISSED")
    Console().print(table)


def store(out: Path, figures: Figures, details: dict[str, Any]) -> None:
    """Writes the figures; those of parts that were not measured now stay in the file."""
    before: dict[str, Any] = msgspec.json.decode(out.read_bytes()) if out.exists() else {}
    rounded = {name: round(value, 3) for name, value in figures.items()}
    kept = {**before, **rounded, "details": {**before.get("details", {}), **details}, "machine": describe_machine()}
    out.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=2) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
