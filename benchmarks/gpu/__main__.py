"""Tests and measurements that need a GPU: `make gpu`, or `python -m benchmarks.gpu [--part PART] [--budget-s SECONDS]`.

On a machine with a GPU that NVML and torch see, it runs in this order: the tests marked `gpu`; jobs that make CUDA run out of
memory and must succeed nevertheless; rows like those of benchmarks.models, by batch, precision and compilation, with the share
of time in which the device is busy. The result, benchmarks/results/gpu-<name>.json, is written after every part and every row.
A further call measures what is missing or has failed, as long as device, sources and torch are the same. On other machines it
says why it cannot measure, and exits with 0.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.gpu.device_tests import LIMIT_S, run_tests
from benchmarks.gpu.memory import run_out_of_memory
from benchmarks.gpu.results import PARTS, GpuResults, resume, set_aside_path, sources_digest
from benchmarks.gpu.rows import busy_share, gpu_rows, result_name
from benchmarks.models.__main__ import QUICK, ModelsBench, TurnLengths, Watch, chosen_or_exit, make_models, rich_table
from benchmarks.models.rows import Row
from benchmarks.models.stack import model_stack
from benchmarks.stack import on_memory
from penstock.errors import PenstockError
from penstock.loadtest.observed.machine import describe_machine, now
from penstock.workers.devices.gpus import Gpus, PyNvml, Unit, read_gpus, visible_gpus
from penstock.workers.telemetry.gpu_meter import GpuMeter

_RESULTS = Path("benchmarks/results")
_SAMPLE_EVERY_S = 0.05
# The limit for a row's worker to load, with compilation: a worker that hangs must not take the other rows' time.
_READY_S = 240.0
_BEGUN = "the process was killed while it measured this row"
# Runs in a process of its own, because a process that has opened CUDA holds device memory until it ends.
_TORCH_SEES = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 'torch ' + torch.__version__ + ' sees no GPU')"


def why_not(gpus: Gpus) -> str:
    """Why this machine cannot measure; empty: it can."""
    if not gpus.units:
        return gpus.absent or "the driver sees no GPU"
    tried = subprocess.run([sys.executable, "-c", _TORCH_SEES], capture_output=True, text=True, check=False)
    reason = tried.stderr.strip().rpartition("\n")[2]
    return reason or f"asking torch ended with code {tried.returncode}" if tried.returncode else ""


def device_watch(meter: GpuMeter) -> Watch:
    """A watcher that samples how busy the row's devices are."""

    @contextmanager
    def watch(devices: Sequence[str]) -> Iterator[dict[str, float | None]]:
        found: dict[str, float | None] = {}
        readings: list[float | None] = []
        over = threading.Event()

        def sample() -> None:
            while not over.wait(_SAMPLE_EVERY_S):
                samples = [meter.read(uuid) for uuid in devices]
                readings.extend(one.utilization if one else None for one in samples)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            yield found
        finally:
            over.set()
            sampler.join()
            found["device_busy_share"] = busy_share(readings)

    return watch


@dataclass(slots=True)
class GpuRun:
    """One call of this program, which adds to `results` and begins nothing after the monotonic moment `ends_at`."""

    results: GpuResults
    out: Path
    every: Sequence[Row]
    parts: Sequence[str]
    quick: bool
    ends_at: float
    say: Callable[[str], None]

    def run(self, folder: Path, rows: Sequence[Row]) -> None:
        """Runs the requested parts that have no result yet. `folder` holds the stores."""
        steps: dict[str, Callable[[], None]] = {
            "tests": self._tests,
            "memory": partial(self._memory, folder),
            "rows": partial(self._rows, folder, rows),
        }
        try:
            for part in self.results.parts_due(self.parts):
                if self._left_s():
                    steps[part]()
                    self._keep()
        finally:
            self._keep()

    def _left_s(self) -> float:
        return max(0.0, self.ends_at - time.monotonic())

    def _keep(self) -> None:
        for row in self.results.rows:
            # One file may hold rows of several calls.
            row.setdefault("measured_at", now())
            row.setdefault("quick", self.quick)
        self.results.not_run = self.results.unknown(self.every)
        self.results.write(self.out)

    def _tests(self) -> None:
        self.say("tests marked gpu ...")
        self.results.tests = run_tests(min(LIMIT_S, self._left_s()))

    def _memory(self, folder: Path) -> None:
        self.say("running out of memory ...")
        try:
            self.results.out_of_memory = run_out_of_memory(folder)
        except (PenstockError, OSError) as error:
            self.results.out_of_memory = {"recovered": False, "failed": str(error)}
        except Exception as error:  # noqa: BLE001 - the rows must not be lost because of this part
            self.say(traceback.format_exc())
            self.results.out_of_memory = {"recovered": False, "failed": f"this is a bug: {type(error).__name__}: {error}"}
        self.say(f"    {self.results.out_of_memory}")

    def _rows(self, folder: Path, rows: Sequence[Row]) -> None:
        due, lengths = self.results.due(rows, quick=self.quick), QUICK if self.quick else TurnLengths()
        if not due:
            return
        bench = ModelsBench(lengths, self.say, watch=device_watch(GpuMeter(PyNvml())), results=self.results)
        try:
            make_models(due)
            with model_stack(folder, due, ready_s=_READY_S) as stack:
                bench.run(stack, due, may_begin=self._may_begin)
        except PenstockError as error:
            # The model files or the stack failed, which concerns all rows; the bench records failures of single rows.
            self.say(str(error))
            self.results.failed |= dict.fromkeys(self.results.unknown(due), str(error))

    def _may_begin(self, row: Row) -> bool:
        """Saves the results, with this row as failed: if the process is killed in this row, the next call measures it last."""
        if not self._left_s():
            return False
        self.results.failed[row.name] = _BEGUN
        self._keep()
        return True


def exit_code(results: GpuResults, parts: Sequence[str], rows: Sequence[Row]) -> int:
    """2: a requested row has no figures; 1: a test, the memory part or a row's target failed; otherwise 0."""
    names = {row.name for row in rows} if "rows" in parts else set()
    if names & {*results.failed, *results.not_run}:
        return 2
    passed = {
        "tests": results.tests_passed,
        "memory": results.memory_recovered,
        "rows": all(row["met"] for row in results.rows if row["name"] in names),
    }
    return 0 if all(passed[part] for part in parts) else 1


def results_to_extend(unit: Unit, gpus: Gpus, out: Path, *, fresh: bool) -> GpuResults:
    """The results of the file, to which this call adds; empty ones if there is no file, or `fresh`."""
    device = {"name": unit.name, "memory_bytes": unit.memory_bytes, "driver": gpus.driver}
    empty = GpuResults(device=device, sources=sources_digest(), machine=describe_machine())
    if fresh and out.exists():
        out.replace(set_aside_path(out))
    return resume(out, empty)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main(arguments: Sequence[str] | None = None) -> int:
    """0 also without a GPU; then nothing is written."""
    began, parser = time.monotonic(), _parser()
    options = parser.parse_args(arguments)
    every = gpu_rows(_cores())
    rows = chosen_or_exit(parser, every, options)
    gpus = visible_gpus(read_gpus(PyNvml()), os.environ)
    reason = why_not(gpus)
    if reason:
        print(f"skipped: no usable GPU here ({reason}); nothing was measured or written")
        return 0
    unit = gpus.units[0]
    # All processes see only this device, so that the file is named after the device that was measured.
    os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": unit.uuid}
    out: Path = options.out or _RESULTS / result_name(unit.name)
    results = results_to_extend(unit, gpus, out, fresh=options.fresh)
    parts = options.part or PARTS
    call = GpuRun(results, out, every, parts, options.quick, began + options.budget_s, _say)
    _say(f"{unit.name}, {unit.memory_bytes / 2**30:.0f} GiB; {len(results.rows)} rows in {out} already")
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-", dir=options.state_dir) as folder:
        if on_memory(Path(folder)):
            _say(f"{folder} lies in memory, where fsync is free: name a disk with --state-dir")
        call.run(Path(folder), rows)
    return _finish(results, out, exit_code(results, parts, rows))


def _finish(results: GpuResults, out: Path, code: int) -> int:
    Console(width=None if sys.stdout.isatty() else 200).print(rich_table(results.rows))
    for name, reason in {**results.skipped, **results.failed}.items():
        _say(f"no figures for {name}: {reason}")
    if results.not_run:
        _say(f"not run yet: {', '.join(results.not_run)}; the next call measures them")
    _say(f"written: {out}")
    return code


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be given more than once")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="begin nothing new after this many seconds")
    parser.add_argument("--quick", action="store_true", help="a few rows, one short turn each")
    parser.add_argument("--only", default="", help="rows whose name holds this text, such as fp16")
    parser.add_argument("--fresh", action="store_true", help="start a new file; an existing one is renamed")
    parser.add_argument("--out", type=Path, default=None, help="default: benchmarks/results/gpu-<name>.json")
    parser.add_argument("--state-dir", default=None, help="where the stores keep their files (default: the temp folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
