"""What a lone request waits for, against the least that it could wait for, measured in turns beside it.

The floor is one empty HTTP round trip to the same gateway and one write that the store syncs before it answers: whoever
stores a job before running it pays both.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import redis

from benchmarks.main_path.http_figures import NOOP_BODY
from benchmarks.session import MeasuringSession, check_answers, post_plan
from benchmarks.stack import store_server, whole_stack
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load import LoadSpec, run_load

_TURN_S = 1.0
_VALUE = b"x" * 1_024


def measure_lone(session: MeasuringSession) -> None:
    plan, beside = session.stack_plan("lone"), session.stack_plan("lone-floor")
    with whole_stack(plan), store_server(beside) as server:
        store = redis.Redis.from_url(server.url)
        predict = post_plan(f"{plan.url}/predictions/noop", NOOP_BODY, connections=1, duration_s=_TURN_S)
        parts: dict[str, Callable[[], float]] = {
            "prediction": lambda: _request_ms(predict),
            "empty request": lambda: _request_ms(_empty(predict, f"{plan.url}/livez")),
            "synced write": lambda: _write_ms(store),
        }
        found = {name: statistics.median(turns) for name, turns in _in_turns(parts, session.seconds).items()}
        store.close()
    floor_ms = found["empty request"] + found["synced write"]
    session.say("lone: " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in found.items()))
    session.findings.detail["lone"] = {f"{name} ms": ms for name, ms in found.items()}
    session.findings.figures["lone_vs_floor"] = found["prediction"] / floor_ms


def _in_turns(parts: dict[str, Callable[[], float]], seconds: float) -> dict[str, list[float]]:
    """Each part's figure of each turn, so that a machine whose speed drifts slows all parts alike. The first turn warms up."""
    for measure in parts.values():
        measure()
    found: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(max(3, round(seconds))):
        for name, measure in parts.items():
            found[name].append(measure())
    return found


def _request_ms(plan: LoadSpec) -> float:
    report = run_load(plan)
    check_answers("lone", report)
    return report.summary.p50_ms


def _empty(plan: LoadSpec, url: str) -> LoadSpec:
    target = parse_target(url)
    return replace(plan, target=target, requests=itertools.repeat(request_bytes(target, method="GET", body=b"", headers={})))


def _write_ms(store: redis.Redis) -> float:
    times, until = [], time.perf_counter() + _TURN_S
    while (began := time.perf_counter()) < until:
        store.set("floor", _VALUE)
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)
