"""The figures over HTTP: the no-op model, the stand-in accelerator, and submitting without waiting."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.report import ACCEL_BATCH_S, ACCEL_LIMIT_RPS
from benchmarks.session import MeasuringSession, post_plan
from benchmarks.stack import StackPlan, whole_stack
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.generator.load import LoadSpec
from penstock.loadtest.stack import Processes

NOOP_BODY = RequestBody(b'{"x": 4}', "application/json")
_AT_ONCE = 64
_SATURATING = 128  # four batches: one runs, one is claimed ahead, two are in transit
_DEADLINE_S = 0.2
# At 120 % of the limit, requests take a little longer than the deadline: 1,829/s x 0.2 s = 366 under way, plus a margin.
_OPEN_CONNECTIONS = 1_000


def random_body(size: int) -> RequestBody:
    return RequestBody(random.Random(size).randbytes(size), "application/octet-stream")


def measure_noop(session: MeasuringSession) -> None:
    plan = session.stack_plan("noop")
    with whole_stack(plan) as processes:
        url = f"{plan.url}/predictions/noop"
        busy = session.load("noop_sync_c64", processes, _closed(session, url, NOOP_BODY, _AT_ONCE))
        lone = session.load("noop_sync_c1", processes, _closed(session, url, NOOP_BODY, 1))
    session.findings.figures["noop_sync_c64_rps"] = busy.summary.rps
    costs_us = session.findings.costs_us["noop_sync_c64"]
    session.findings.figures["cpu_us_per_noop"] = costs_us["total"] - costs_us["client"]
    session.findings.figures["noop_sync_c1_p50_ms"] = lone.summary.p50_ms


def measure_everysec(session: MeasuringSession) -> None:
    plan = session.stack_plan("everysec", fsync="everysec")
    with whole_stack(plan) as processes:
        url = f"{plan.url}/predictions/noop"
        lone = session.load("noop_sync_c1_everysec", processes, _closed(session, url, NOOP_BODY, 1))
    session.findings.figures["noop_sync_c1_p50_everysec_ms"] = lone.summary.p50_ms


def measure_accel(session: MeasuringSession) -> None:
    plan = session.stack_plan("accel")
    with whole_stack(plan) as processes:
        _closed_accel(session, plan, processes)
        _open_accel(session, plan, processes)
        # Last, because the disk has gigabytes to write back afterwards, which would slow the syncs of a later run.
        _large_accel(session, plan, processes)


def _closed_accel(session: MeasuringSession, plan: StackPlan, processes: Processes) -> None:
    url, figures = f"{plan.url}/predictions/accel", session.findings.figures
    lone = session.load("accel_lone", processes, _closed(session, url, random_body(4_096), 1))
    figures["accel_lone_p50_ms"] = lone.summary.p50_ms
    small = session.load("accel_saturated", processes, _closed(session, url, random_body(4_096), _SATURATING))
    figures["accel_saturated_ratio"] = small.summary.rps / ACCEL_LIMIT_RPS


def _large_accel(session: MeasuringSession, plan: StackPlan, processes: Processes) -> None:
    url = f"{plan.url}/predictions/accel"
    for name, connections in (("accel_saturated_100k", _SATURATING), ("accel_100k", _AT_ONCE)):
        large = session.load(name, processes, _closed(session, url, random_body(102_400), connections))
        session.findings.figures[f"{name}_ratio"] = large.summary.rps / ACCEL_LIMIT_RPS


def _open_accel(session: MeasuringSession, plan: StackPlan, processes: Processes) -> None:
    url, figures = f"{plan.url}/predictions/accel", session.findings.figures
    steady = _closed(session, url, random_body(4_096), _OPEN_CONNECTIONS)
    eighty = session.load("accel_80", processes, replace(steady, rate=0.8 * ACCEL_LIMIT_RPS))
    figures["accel_80_p99_batches"] = eighty.summary.p99_ms / 1e3 / ACCEL_BATCH_S
    hurried = _closed(session, f"{url}?deadline_s={_DEADLINE_S}", random_body(4_096), _OPEN_CONNECTIONS)
    over = session.load("accel_120", processes, replace(hurried, rate=1.2 * ACCEL_LIMIT_RPS, deadline_s=_DEADLINE_S))
    figures["accel_120_goodput_ratio"] = over.summary.goodput_rps / ACCEL_LIMIT_RPS


def measure_submit(session: MeasuringSession) -> None:
    """The worker runs the submitted jobs meanwhile, as in normal use."""
    plan = session.stack_plan("submit")
    with whole_stack(plan) as processes:
        url = f"{plan.url}/v1/models/noop/jobs"
        report = session.load("submit", processes, _closed(session, url, NOOP_BODY, _AT_ONCE))
    session.findings.figures["submit_rps"] = report.summary.rps


def _closed(session: MeasuringSession, url: str, body: RequestBody, connections: int) -> LoadSpec:
    return post_plan(url, body, connections=connections, duration_s=session.seconds)
