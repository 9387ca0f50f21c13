"""The result of a search, for the tests of its reports: the result has every verdict, and formulas give its figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from penstock.tune.result import (
    BatchTime,
    Choice,
    Configuration,
    ConfigurationVerdict,
    Drift,
    EngineSettings,
    Figures,
    Goal,
    Measured,
    Overheads,
    RateCapacity,
    SearchTime,
    TuneResult,
)

GOAL = Goal(limit_s=1.0, price_per_hour=0.4)
ENGINES = (
    EngineSettings(runtime="torch", threads=1),
    EngineSettings(runtime="torch", threads=2),
    EngineSettings(runtime="torch", precision="bf16", threads=1),
    EngineSettings(runtime="torch", precision="bf16", compile="default", threads=1),
    EngineSettings(runtime="onnx", threads=1),
    EngineSettings(runtime="onnx", threads=2),
)
_ITEM_S = dict(zip(ENGINES, (0.115, 0.064, 0.068, 0.048, 0.081, 0.043), strict=True))
BROKEN = EngineSettings(runtime="onnx", precision="bf16", threads=1)


def measured(engine: EngineSettings, slots: int = 1) -> Measured:
    item_s = _ITEM_S[engine] * (1.0 if slots == 1 else 1.06)
    times = tuple(BatchTime(size, item_s * (size + 0.15), 0.008 * size, 0.001 * size) for size in (1, 2, 4, 8))
    exact = engine.precision == "fp32"
    drift = Drift(ENGINES[0].label, 0.0 if exact else 5.9, 5e-8 if exact else 0.0052, 0, 300)
    return Measured(engine, slots, times, 410_000_000, load_s=3.6, drift=drift, took_s=4.0)


def configurations(goal: Goal = GOAL) -> tuple[Configuration, ...]:
    found = []
    for engine, batch, slots, wait_s in product(ENGINES, (1, 2, 4, 8), (1, 2), (0.0, 0.01)):
        if (engine.threads or 1) * slots > 2:
            continue
        choice = Choice(engine, batch, wait_s, slots)
        throughput = slots * batch / (_ITEM_S[engine] * (batch + 0.15)) * (0.55 + 0.03 * batch)
        tail_ms = 1e3 * goal.limit_s * (0.72 + 0.03 * batch)
        figures = Figures(
            throughput, throughput, tail_ms * 0.4, tail_ms, tail_ms, 1 + batch / 3, throughput * 0.97, throughput * 1.03
        )
        why = f"it should give {throughput:.1f}/s, less than what was confirmed"
        cost = 0.4 / throughput / 3600 * 1e6
        found.append(
            Configuration(choice, ConfigurationVerdict.LOST, why, figures, cost_per_million=cost, memory_bytes=410_000_000)
        )
    found.sort(key=lambda one: -(one.predicted.throughput_rps if one.predicted else 0.0))
    chosen = [_confirmed(one, place) for place, one in enumerate(found[:4])]
    out = [
        Configuration(Choice(BROKEN, batch), ConfigurationVerdict.PRUNED, "it does not run: no bf16 kernels")
        for batch in (1, 2, 4, 8)
    ]
    return (*chosen, *found[4:], *out)


def _confirmed(one: Configuration, place: int) -> Configuration:
    assert one.predicted is not None
    factor = 0.98 - 0.01 * place
    figures = replace(one.predicted, throughput_rps=one.predicted.throughput_rps * factor, tail_ms=one.predicted.tail_ms * 1.03)
    figures = replace(figures, p99_ms=figures.tail_ms)
    if place:
        return replace(one, verdict=ConfigurationVerdict.CONFIRMED, why="measured, and less than the winner", confirmed=figures)
    stages_ms = {"queue": 120.0, "preprocess": 17.0, "inference": 190.0, "postprocess": 2.0, "rest": 6.0}
    return replace(
        one, verdict=ConfigurationVerdict.WINNER, why="the most", confirmed=figures, rerun=figures, stages_ms=stages_ms
    )


def result(*, model: str = "discs", goal: Goal = GOAL, note: str = "an example") -> TuneResult:
    found = configurations(goal)
    assert found[0].predicted is not None
    capacity = RateCapacity(100.0, 6, 0, found[0].choice, found[0].predicted, 0.1, "from the simulation", 6, 7)
    space: dict[str, list[Any]] = {
        "batch_size": [1, 2, 4, 8],
        "slots": [1, 2],
        "threads": [1, 2],
        "runtime": ["torch", "onnx"],
    }
    machine = {
        "date": "2026-11-21T10:00:00+00:00",
        "cores": 2,
        "memory_bytes": 24_000_000_000,
        "processor": "a processor",
        "system": "Linux",
        "python": "3.11.2",
        "packages": {"torch": "2.13.0", "redis": "absent"},
    }
    return TuneResult(
        model=model,
        version="1",
        goal=goal,
        space=space,
        configurations=found,
        measured=(
            *(measured(engine) for engine in ENGINES),
            measured(ENGINES[3], 2),
            Measured(BROKEN, error="no bf16 kernels"),
        ),
        overheads=Overheads(0.0004, 0.0005, 0.002, 0.001),
        capacity=capacity,
        machine=machine,
        spent=SearchTime(512.0, 600.0, {"measure": 210.0, "simulate": 30.0, "confirm": 240.0}, 4, len(found)),
        notes=(note,) if note else (),
        sample="16 pictures of examples/detection/build/scenes",
    )
