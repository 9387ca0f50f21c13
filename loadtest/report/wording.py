"""How figures are worded, the same in every report. Pure."""

from __future__ import annotations

import math

from penstock.loadtest.result import LoadTestResult

UNKNOWN = "-"


def number(value: float | None) -> str:
    """Three digits that matter: 0.0421, 4.21, 421, 42,100."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(digits, 4)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value)} ms"


def rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value)}/s"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{number(value * 100)} %"


def size(count: float | None) -> str:
    if count is None:
        return UNKNOWN
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{number(count / scale)} {unit}"
    return f"{count:.0f} B"


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
    """Why the server must not be judged by this; empty when it may."""
    return [f"generator-limited: {reason}" for reason in result.generator.limits]


def generator_line(result: LoadTestResult) -> str:
    told = result.generator
    cores = "with a core each" if told.processes > 1 else "on a core of its own"
    ceiling = f"could send {rate(told.ceiling_rps)} {cores}" if told.ceiling_rps else "its ceiling is unknown"
    lag = f", left at most {milliseconds(told.lag_p99_ms)} late (p99)" if told.lag_p99_ms is not None else ""
    many = f"{told.processes} processes" if told.processes > 1 else "one process"
    return f"{many}, {ceiling}{lag}, {number(told.cpu_us_per_call)} us of CPU per call"
