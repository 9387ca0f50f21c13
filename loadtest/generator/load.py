"""A lean HTTP/1.1 load generator: `python -m penstock.loadtest.generator.load URL -c 64 -d 10` or `... --rate 1200`."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import uvloop

from penstock.loadtest.generator.arrivals import constant, poisson
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.connection import HttpTarget, parse_target, request_bytes
from penstock.loadtest.generator.load_loop import LoadWire, ResponseRecorder
from penstock.loadtest.generator.open_loop import OpenLoop
from penstock.loadtest.generator.summary import Summary, percentile, summarize

# Above these limits the generator, not the server, shapes the result.
_MAX_CORE_SHARE = 0.90
_MAX_LAG_P99_S = 0.005


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A closed loop if `rate` is None (then `connections` is the concurrency), otherwise an open loop at `rate` per second.

    `requests` are complete requests, sent one by one; a closed loop ends early when they are used up.
    """

    target: HttpTarget
    requests: Iterator[bytes]
    connections: int = 64
    duration_s: float = 10.0
    rate: float | None = None
    arrivals: str = "poisson"
    seed: int = 1
    deadline_s: float = math.inf
    drain_s: float = 10.0


@dataclass(frozen=True, slots=True)
class LoadReport:
    """`limits`: one sentence per reason why the generator itself shaped the result."""

    summary: Summary
    offered: int
    seconds: float
    unfinished: int
    starved: int
    lag_p99_ms: float
    cpu_us_per_request: float
    limits: list[str]
    bodies: dict[int, str]
    latencies_s: list[float]


async def drive(spec: LoadSpec) -> LoadReport:
    """Runs one load. Raises OSError if the server cannot be reached at the start."""
    began_cpu_s, began_at = time.process_time(), time.perf_counter()
    if spec.rate is None:
        closed = ClosedLoop(LoadWire(spec.target), spec.requests, ResponseRecorder())
        seconds = await closed.run(spec.connections, spec.duration_s, drain_s=spec.drain_s)
        facts = _Facts(closed.recorder, seconds, closed.offered, closed.unfinished, 0, [])
    else:
        opened = OpenLoop(LoadWire(spec.target), spec.requests, _arrivals(spec, spec.rate), ResponseRecorder())
        elapsed_s = await opened.run(spec.connections, spec.duration_s, drain_s=spec.drain_s)
        # An overloaded server works off its queue after the last request. This time counts as long as answers do.
        seconds = min(elapsed_s, spec.duration_s + spec.deadline_s)
        facts = _Facts(opened.recorder, seconds, opened.offered, opened.unfinished, opened.starved, sorted(opened.lag_s))
    cpu_s = time.process_time() - began_cpu_s
    return _report(spec, facts, cpu_s=cpu_s, core_share=cpu_s / (time.perf_counter() - began_at))


def _arrivals(spec: LoadSpec, rate: float) -> Iterator[float]:
    return poisson(rate, spec.seed) if spec.arrivals == "poisson" else constant(rate)


@dataclass(frozen=True, slots=True)
class _Facts:
    recorder: ResponseRecorder
    seconds: float
    offered: int
    unfinished: int
    starved: int
    lag_s: Sequence[float]


def _report(spec: LoadSpec, facts: _Facts, *, cpu_s: float, core_share: float) -> LoadReport:
    lag_p99_s = percentile(facts.lag_s, 99.0) if facts.lag_s else 0.0
    return LoadReport(
        summary=summarize(facts.recorder.samples, facts.seconds, deadline_s=spec.deadline_s),
        offered=facts.offered,
        seconds=facts.seconds,
        unfinished=facts.unfinished,
        starved=facts.starved,
        lag_p99_ms=lag_p99_s * 1e3,
        cpu_us_per_request=cpu_s / max(facts.offered, 1) * 1e6,
        limits=own_limits(core_share, lag_p99_s, facts.starved),
        bodies={status: body.decode("utf-8", "replace") for status, body in facts.recorder.bodies.items()},
        latencies_s=facts.recorder.samples.latencies_s.tolist(),
    )


def own_limits(core_share: float, lag_p99_s: float, starved: int) -> list[str]:
    """Why the generator itself shaped the result; empty: it did not."""
    reasons = []
    if core_share > _MAX_CORE_SHARE:
        reasons.append(f"the generator used {core_share:.0%} of its core: use fewer requests or several generators")
    if lag_p99_s > _MAX_LAG_P99_S:
        reasons.append(f"requests left up to {lag_p99_s * 1e3:.1f} ms late (p99): the generator could not keep the schedule")
    if starved:
        reasons.append(f"{starved} requests found no idle connection: raise the number of connections")
    return reasons


def run_load(spec: LoadSpec) -> LoadReport:
    """Runs one load in a uvloop of its own."""
    return uvloop.run(drive(spec))


def main(arguments: Sequence[str] | None = None) -> int:
    """0: every request succeeded and the generator was not the limit; otherwise 1."""
    options = _parser().parse_args(arguments)
    report = run_load(_spec(options))
    sys.stdout.write(_as_json(report) if options.json else _as_text(report))
    return 1 if report.limits or report.summary.errors or report.unfinished else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.loadtest.generator.load", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--unix", default="", help="connect to this socket instead of host and port")
    parser.add_argument("-c", "--connections", type=int, default=64, help="requests under way, or the open loop's pool")
    parser.add_argument("-d", "--duration-s", type=float, default=10.0)
    parser.add_argument("--rate", type=float, help="open loop: requests per second")
    parser.add_argument("--arrivals", choices=("poisson", "constant"), default="poisson")
    parser.add_argument("--deadline-s", type=float, default=math.inf, help="answers later than this are not goodput")
    parser.add_argument("--method", default="")
    parser.add_argument("--body", default="", help="text, or @file")
    parser.add_argument("--content-type", default="application/json")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser


def _spec(options: argparse.Namespace) -> LoadSpec:
    target = parse_target(options.url, options.unix)
    body = Path(options.body[1:]).read_bytes() if options.body.startswith("@") else options.body.encode()
    headers = {"Content-Type": options.content_type} if body else {}
    request = request_bytes(target, method=options.method or ("POST" if body else "GET"), body=body, headers=headers)
    return LoadSpec(
        target,
        itertools.repeat(request),
        connections=options.connections,
        duration_s=options.duration_s,
        rate=options.rate,
        arrivals=options.arrivals,
        seed=options.seed,
        deadline_s=options.deadline_s,
    )


def _as_json(report: LoadReport) -> str:
    return msgspec.json.encode(replace(report, latencies_s=[])).decode() + "\n"


def _as_text(report: LoadReport) -> str:
    result = report.summary
    lines = [
        f"{result.count} answers in {report.seconds:.1f} s: {result.rps:,.0f}/s, goodput {result.goodput_rps:,.0f}/s",
        f"ms: p50 {result.p50_ms:.2f}  p90 {result.p90_ms:.2f}  p99 {result.p99_ms:.2f}  p99.9 {result.p999_ms:.2f}",
        f"    max {result.max_ms:.2f}",
        f"generator: {report.cpu_us_per_request:.1f} us CPU per request, lag p99 {report.lag_p99_ms:.2f} ms",
        *(f"{count} x {status}: {report.bodies.get(_status(status), '')[:200]}" for status, count in result.errors.items()),
        *([f"unfinished: {report.unfinished}"] if report.unfinished else []),
        *(f"the generator was the limit: {reason}" for reason in report.limits),
    ]
    return "\n".join(lines) + "\n"


def _status(name: str) -> int:
    return int(name) if name.isdigit() else 0


if __name__ == "__main__":
    sys.exit(main())
