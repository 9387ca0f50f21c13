"""The fastest loop over a file without penstock: rows sorted by length, in batches of the best size.

`benchmarks.bulk` starts `python -m benchmarks.bulk.loop CONFIG MODEL FILE PART PARTS CORES`. The loop loads the model from the
worker's settings, with one thread for each of CORES (such as 0,1), and reads every PARTS-th row of FILE. It tries batch sizes
on a sample and prints the best one. For each line of its input, it then runs all of its rows once (read, sort, preprocess,
inference, postprocess, the model's calls one after another with all threads) and prints the seconds. Results stay in memory, as
in a notebook.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmarks.bulk.inputs import read_inputs
from benchmarks.models.loop import one_call_at_a_time
from penstock.handlers.load import load
from penstock.handlers.loaded import Loaded
from penstock.settings.tables import Settings
from penstock.workers.child.calls.run import Calls

_SIZES = (4, 8, 16, 32, 64, 128, 256)
_SAMPLE = 512
_ROUNDS = 2


def run_all(loaded: Loaded, rows: Sequence[Any], size: int) -> list[Any]:
    """Runs all rows in batches of `size`, short rows first; one output per row, in the order of the runs."""
    ordered, calls = sorted(rows, key=len), Calls(loaded)
    outputs: list[Any] = []
    for first in range(0, len(ordered), size):
        values: list[Any] = list(ordered[first : first + size])
        for stage in (loaded.preprocess, calls.outputs, loaded.postprocess):
            values = values if stage is None else list(stage(values))
        outputs += values
    return outputs


def best_size(loaded: Loaded, rows: Sequence[Any], sizes: Sequence[int] = _SIZES) -> int:
    """The fastest size on a sample of the rows."""
    sample = rows[:: max(1, len(rows) // _SAMPLE)]
    return min(sizes, key=lambda size: min(_seconds(loaded, sample, size) for _ in range(_ROUNDS)))


def _seconds(loaded: Loaded, rows: Sequence[Any], size: int) -> float:
    began = time.perf_counter()
    run_all(loaded, rows, size)
    return time.perf_counter() - began


def main() -> int:
    config, name, file, part, parts, listed = sys.argv[1:]
    cores = {int(core) for core in listed.split(",")}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    os.sched_setaffinity(0, cores)
    [spec] = [spec for spec in Settings.load(Path(config)).specs() if spec.name == name]
    loaded = load(spec.source, spec.name, threads=len(cores), options=spec.options, max_batch_size=spec.policy.max_batch_size)
    with one_call_at_a_time(loaded.handler):
        _serve(loaded, lambda: read_inputs(Path(file))[int(part) :: int(parts)], answers)
    return 0


def _serve(loaded: Loaded, read: Callable[[], list[object]], answers: TextIO) -> None:
    """Prints the best size, then for each line of the input runs all rows and prints the seconds."""
    rows = read()
    size = best_size(loaded, rows)
    gc.collect()
    gc.freeze()
    answers.write(json.dumps({"rows": len(rows), "size": size}) + "\n")
    for _ in sys.stdin:
        began = time.perf_counter()
        run_all(loaded, read(), size)
        answers.write(json.dumps(time.perf_counter() - began) + "\n")


if __name__ == "__main__":
    sys.exit(main())
