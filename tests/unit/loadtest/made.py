"""Loads and results for the tests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock.loadtest import figures
from penstock.loadtest.assignment import MergedTally
from penstock.loadtest.result import DeviceUse, Generator, Inside, LoadTestResult, ProcessUse, TestSubject
from penstock.loadtest.workload import Step


def load(calls: Sequence[tuple[float, float, int]], *, more_due: Sequence[float] = ()) -> MergedTally:
    """A load of calls (due_at, latency_s, status). The calls due at `more_due` were never answered."""
    sent_at = [due_at for due_at, _, _ in calls]
    return MergedTally(
        due_at=array("d", [*sent_at, *more_due]),
        sent_at=array("d", sent_at),
        latencies_s=array("d", [latency_s for _, latency_s, _ in calls]),
        statuses=array("H", [status for _, _, status in calls]),
    )


def result(*, limits: Sequence[str] = (), model: str = "square", said: str = "") -> LoadTestResult:
    """A result of 5 s at 10 calls per second and 5 s at 20."""
    calls = [(number / 10.0, 0.010 + number * 1e-5, 200) for number in range(50)]
    calls += [(5.0 + number / 20.0, 0.020 + number * 1e-5, 200 if number % 10 else 503) for number in range(100)]
    whole = load(calls)
    whole.bodies[503] = said
    mine = figures.calls_of(whole)
    outcome = figures.outcome(whole, mine, 10.0, deadline_s=0.02)
    assert outcome.latency is not None
    return LoadTestResult(
        subject=TestSubject(
            "penstock", "http://127.0.0.1:8080", model, "sync", "1", slots=1, max_batch_size=8, max_wait_s=0.01
        ),
        load={"rate": "10,20", "arrivals": "constant", "duration_s": 10.0, "warm_up_s": 1.0, "deadline_s": 0.02, "seed": 1},
        outcome=outcome,
        generator=Generator(1, 100_000.0, 90.0, 0.1, 0.4, 0, list(limits)),
        generator_limited=bool(limits),
        stopped=False,
        inside=Inside(
            "Server-Timing of 140 answers",
            140,
            queue=outcome.latency,
            run=outcome.latency,
            batch_sizes={1: 100.0, 2: 20.0},
            reasons={"full": 20.0, "idle": 100.0},
            stages_ms={"queue": 1.0, "preprocess": 0.5, "inference": 3.0, "postprocess": 0.25, "rest": 2.0},
            busy_share=0.42,
            counted={"jobs_accepted": 150.0},
        ),
        processes=[ProcessUse("gateway", 7, 0.5, 0.75, 1e8, 2e8), ProcessUse("generator", 9, 0.1, 0.2, 1e7, 1e7)],
        devices=[DeviceUse("H200", 0.5, 0.9, 5e9, 6e9, 1e10)],
        steps=figures.parts(whole, mine, [Step(0.0, 5.0, 10.0), Step(5.0, 10.0, 20.0)], deadline_s=0.02),
        series=figures.series(whole, mine, 10.0),
        cpu_series={"gateway": [0.5] * 10},
        cdf=figures.cdf(mine, 10.0),
        machine={"date": "2026-11-21T10:00:00+00:00", "cores": 2, "memory_bytes": 10_000_000_000},
        foreign_share=0.05,
        notes=["an example"],
    )
