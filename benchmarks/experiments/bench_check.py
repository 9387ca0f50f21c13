"""Checks that `penstock bench` measures right: against a server with known service times, mean and percentiles within 3 %.

`python -m benchmarks.experiments.bench_check [--seconds 20] [--out benchmarks/results/bench_check.json]` takes two minutes or
more. The expected figures are an exact simulation of the same seeded arrivals; for M/D/1 the theoretical mean is reported too.
A run in which other processes took more than a tenth of the machine does not count: it is repeated, up to `--tries` times,
and the first undisturbed run is kept, whatever its result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.experiments.known_queue import KnownDevice, latencies, mean_latency_s
from penstock.loadtest.adapters import make_adapter
from penstock.loadtest.figures import spread
from penstock.loadtest.generator.arrivals import Stretch
from penstock.loadtest.generator_process import moments
from penstock.loadtest.observed.machine import describe_machine
from penstock.loadtest.result import LoadTestResult, Spread
from penstock.loadtest.run import FOREIGN_SHARE, LoadTest, run_load_test
from penstock.loadtest.workload import Kind, Shape

TOLERANCE = 0.03
_JUDGED = ("mean_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms")
_DEFAULT_OUT = Path("benchmarks/results/bench_check.json")


@dataclass(frozen=True, slots=True)
class CheckCase:
    name: str
    device: KnownDevice
    rate: float
    processes: int = 1


CASES = (
    CheckCase("md1_rho_0.5", KnownDevice(0.04), 12.5),
    CheckCase("md1_rho_0.7", KnownDevice(0.04), 17.5),
    CheckCase("batches_of_8", KnownDevice(0.03, 0.005, 8), 80.0),
    CheckCase("batches_of_8_two_generators", KnownDevice(0.03, 0.005, 8), 80.0, processes=2),
)


@contextmanager
def server(device: KnownDevice) -> Iterator[str]:
    """The server's URL."""
    numbers = (str(device.fixed_s), str(device.per_item_s), str(device.most))
    command = [sys.executable, "-m", "benchmarks.experiments.known_server", *numbers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.terminate()


def measure(case: CheckCase, seconds: float) -> LoadTestResult:
    shape = Shape(duration_s=seconds, warm_up_s=1.0, profile=(Stretch(case.rate, case.rate, seconds),))
    with server(case.device) as url:
        adapter = make_adapter(Kind.HTTP, url, "", method="GET")
        return asyncio.run(
            run_load_test(LoadTest(adapter, shape, [], {}, processes=case.processes), lambda seconds, progress: None)
        )


def expected(case: CheckCase, seconds: float) -> Spread:
    shape = Shape(duration_s=seconds, warm_up_s=1.0, profile=(Stretch(case.rate, case.rate, seconds),))
    due = list(moments(shape))
    found = spread(took_s for at, took_s in zip(due, latencies(case.device, due), strict=True) if at >= shape.warm_up_s)
    assert found is not None
    return found


def differences(measured: Spread | None, known: Spread) -> dict[str, float]:
    """By which share each judged figure differs from the known one."""
    if measured is None:
        return dict.fromkeys(_JUDGED, math.inf)
    return {name: getattr(measured, name) / getattr(known, name) - 1.0 for name in _JUDGED}


def undisturbed(case: CheckCase, seconds: float, tries: int) -> LoadTestResult:
    """The first run without much other load on the machine; the last run if there is none."""
    result = measure(case, seconds)
    while tries > 1 and result.foreign_share > FOREIGN_SHARE:
        print(f"{case.name}: other processes took {result.foreign_share:.0%} of the machine: measuring again", flush=True)
        result, tries = measure(case, seconds), tries - 1
    return result


def check(case: CheckCase, seconds: float, tries: int) -> dict[str, object]:
    result, known = undisturbed(case, seconds, tries), expected(case, seconds)
    difference = differences(result.outcome.latency, known)
    worst = max(abs(value) for value in difference.values())
    theory_ms = mean_latency_s(case.rate, case.device.fixed_s) * 1e3 if case.device.most == 1 else None
    print(f"{case.name}: worst {worst:.1%} off, {'within' if worst <= TOLERANCE else 'NOT within'} {TOLERANCE:.0%}", flush=True)
    return {
        "within": worst <= TOLERANCE,
        "worst_off": round(worst, 5),
        "off": {name: round(value, 5) for name, value in difference.items()},
        "measured": result.outcome.latency and asdict(result.outcome.latency),
        "expected": asdict(known),
        "long_run_mean_ms": theory_ms,
        "calls": result.outcome.offered,
        "foreign_share": round(result.foreign_share, 3),
        "notes": [*result.notes, *result.generator.limits],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every figure is within the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experiments.bench_check", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured time per case")
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT)
    parser.add_argument("--tries", type=int, default=5, help="how often a disturbed run is repeated")
    options = parser.parse_args(arguments)
    cases = {case.name: check(case, options.seconds, options.tries) for case in CASES}
    report = {"tolerance": TOLERANCE, "seconds": options.seconds, "machine": describe_machine(), "cases": cases}
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written: {options.out}")
    return 0 if all(case["within"] for case in cases.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
