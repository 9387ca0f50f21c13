"""The device's part of the evidence: `make gpu`, or `python -m penstock.benchmarks.gpu [--quick] [--only TEXT]`.

On a machine with a GPU that NVML and torch see, in this order: the tests marked `gpu`; CUDA running out of memory, and all jobs
succeeding; then rows like those of penstock.benchmarks.models, by batch, precision and compilation, with the share of time
that the device was busy. The result is benchmarks/results/gpu-<name>.json. Anywhere else it says why not, and ends with 0.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from penstock.benchmarks.gpu_memory import run_out_of_memory
from penstock.benchmarks.gpu_rows import busy_share, gpu_rows, result_name
from penstock.benchmarks.model_rows import chosen
from penstock.benchmarks.model_stack import model_stack
from penstock.benchmarks.models import QUICK, Bench, Lengths, Watch, make_models, rich_table
from penstock.benchmarks.report import describe_machine
from penstock.errors import PenstockError
from penstock.workers.devices.gpus import Gpus, PyNvml, Unit, read_gpus
from penstock.workers.gpu_meter import GpuMeter

_RESULTS = Path("benchmarks/results")
_SAMPLE_EVERY_S = 0.05
# In a process of its own: one that has opened CUDA holds memory on the device until it ends.
_TORCH_SEES = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 'torch ' + torch.__version__ + ' sees no GPU')"


def why_not(gpus: Gpus) -> str:
    """Why nothing can be measured here; empty if it can."""
    if not gpus.units:
        return gpus.absent or "the driver sees no GPU"
    tried = subprocess.run([sys.executable, "-c", _TORCH_SEES], capture_output=True, text=True, check=False)
    told = tried.stderr.strip().rpartition("\n")[2]
    return told or f"asking torch ended with code {tried.returncode}" if tried.returncode else ""


def device_watch(uuid: str, meter: GpuMeter) -> Watch:
    """Samples how busy the device is for as long as it is held."""

    @contextmanager
    def watch() -> Iterator[dict[str, float]]:
        found: dict[str, float] = {}
        readings: list[float | None] = []
        over = threading.Event()

        def sample() -> None:
            while not over.wait(_SAMPLE_EVERY_S):
                reading = meter.read(uuid)
                readings.append(reading.utilization if reading else None)

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            yield found
        finally:
            over.set()
            sampler.join()
            found["device_busy_share"] = busy_share(readings)

    return watch


def run_tests() -> dict[str, Any]:
    """The tests that need a GPU."""
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).resolve().parent.parent)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    summary = lines[-1] if lines else ""
    return {
        "exit_code": done.returncode,
        "summary": summary,
        "seconds": round(time.monotonic() - began, 1),
        "failures": failures,
    }


def measure(unit: Unit, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Everything there is to write, but for the machine."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    say(f"{unit.name}, {unit.memory_bytes / 2**30:.0f} GiB: tests marked gpu ...")
    tests = run_tests()
    say(f"    {tests['summary']}")
    rows = chosen(gpu_rows(_cores(), onnx=_installed("onnxruntime-gpu")), quick=options.quick, only=options.only)
    make_models(rows)
    bench = Bench(QUICK if options.quick else Lengths(), say, watch=device_watch(unit.uuid, GpuMeter(PyNvml())))
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-", dir=options.state_dir) as folder:
        say("running out of memory ...")
        memory = _memory(Path(folder))
        say(f"    {memory}")
        with model_stack(Path(folder), rows) as stack:
            bench.run(stack, rows)
    console.print(rich_table(bench.results.rows))
    return {"tests": tests, "out_of_memory": memory, **asdict(bench.results)}


def _memory(folder: Path) -> dict[str, Any]:
    try:
        return run_out_of_memory(folder)
    except (PenstockError, OSError) as error:
        return {"recovered": False, "failed": str(error)}


def exit_code(found: dict[str, Any]) -> int:
    """2 when a row could not be measured, 1 when a test, the memory or a row's target failed, else 0."""
    if found["failed"]:
        return 2
    good = found["tests"]["exit_code"] == 0 and found["out_of_memory"]["recovered"]
    return 0 if good and all(row["met"] for row in found["rows"]) else 1


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """0 also where there is no GPU: then nothing is written."""
    options = _parser().parse_args(arguments)
    gpus = read_gpus(PyNvml())
    reason = why_not(gpus)
    if reason:
        print(f"skipped: no usable GPU here ({reason}); nothing was measured or written")
        return 0
    console = Console(width=None if sys.stdout.isatty() else 200)
    unit = gpus.units[0]
    found = measure(unit, options, console)
    device = {"name": unit.name, "memory_bytes": unit.memory_bytes, "driver": gpus.driver}
    out: Path = options.out or _RESULTS / result_name(unit.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    content = {"device": device, **found, "machine": describe_machine()}
    out.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
    console.print(f"written: {out}")
    return exit_code(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few rows, one short turn each")
    parser.add_argument("--only", default="", help="rows whose name holds this text, such as fp16")
    parser.add_argument("--out", type=Path, default=None, help="default: benchmarks/results/gpu-<name>.json")
    parser.add_argument("--state-dir", default=None, help="where the stores keep their files (default: the temp folder)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
