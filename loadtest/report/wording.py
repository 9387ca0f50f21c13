"""The sentences of a report about a whole result: subject, load, and whether the figures can be judged. Pure."""

from __future__ import annotations

from penstock.loadtest.result import LoadTestResult
from penstock.words import UNKNOWN, milliseconds, number, per_second


def headline(result: LoadTestResult) -> str:
    subject = result.subject
    where = f"{subject.model} at {subject.url}" if subject.model and not subject.model.startswith("http") else subject.url
    client = f", {subject.client} client" if subject.target == "penstock" else ""
    return f"{where} ({subject.target}{client})"


def load_line(result: LoadTestResult) -> str:
    """`open loop, poisson arrivals at 50..500/s, 30 s after 5 s of warm-up, seed 1`."""
    load = result.load
    if load.get("closed"):
        how = f"closed loop, {load['closed']} calls under way"
    elif load.get("trace"):
        how = f"open loop, the trace {load['trace']}"
    else:
        how = f"open loop, {load.get('arrivals', 'poisson')} arrivals at {load.get('rate', UNKNOWN)} per second"
    deadline = load.get("deadline_s")
    more = f", deadline {milliseconds(deadline * 1e3)}" if deadline else ""
    warm_up = f" after {number(load.get('warm_up_s'))} s of warm-up" if load.get("warm_up_s") else ""
    return f"{how}, {number(result.outcome.seconds)} s{warm_up}{more}, seed {load.get('seed', 1)}"


def verdict(result: LoadTestResult) -> list[str]:
    """Why this result must not be used to judge the server; empty: it may."""
    return [f"generator-limited: {reason}" for reason in result.generator.limits]


def generator_line(result: LoadTestResult) -> str:
    own = result.generator
    cores = "with a core each" if own.processes > 1 else "on a core of its own"
    ceiling = f"could send {per_second(own.ceiling_rps)} {cores}" if own.ceiling_rps else "its ceiling is unknown"
    lag = f", left at most {milliseconds(own.lag_p99_ms)} late (p99)" if own.lag_p99_ms is not None else ""
    many = f"{own.processes} processes" if own.processes > 1 else "one process"
    return f"{many}, {ceiling}{lag}, {number(own.cpu_us_per_call)} us of CPU per call"
