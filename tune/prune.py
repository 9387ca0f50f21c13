"""Configurations that measurements rule out before any simulation, each with its reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.tune.result import BatchTime, Choice, Drift, EngineSettings, Goal, Measured
from penstock.tune.simulation.predict import LearnedTimes
from penstock.words import milliseconds, size

# A smaller difference is measurement noise.
_CLEARLY = 1.02
_MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes that all children together may use; None: unknown."""

    memory_bytes: int | None = None
    device_memory_bytes: int | None = None


MeasuredEngines = Mapping[tuple[EngineSettings, int], Measured]


def refused(measured: Measured, goal: Goal) -> str:
    """Why this engine is ruled out at every batch size; empty: it is not."""
    if measured.error:
        return f"it does not run: {measured.error}"
    drift = drift_in_words(measured.drift, goal.tolerance)
    if drift:
        return drift
    if not measured.times:
        return "it was not measured: the time was over"
    alone_s = LearnedTimes(measured.times).alone_s(1)
    if alone_s > goal.limit_s:
        return f"one item alone takes {_ms(alone_s)}, the limit is {_ms(goal.limit_s)}"
    return ""


def drift_in_words(drift: Drift | None, tolerance: float) -> str:
    """Why an engine's answers are too far from the reference's; empty: they are not."""
    if drift is None:
        return ""
    if drift.relative > tolerance:
        return (
            f"its answers drift from those of {drift.reference} by {drift.relative:.2g} of the largest value, "
            f"the tolerance is {tolerance:g}"
        )
    if drift.differing > tolerance * drift.compared:
        return f"{drift.differing} of {drift.compared} answers are not those of {drift.reference}"
    return ""


def ruled_out(choices: Sequence[Choice], engines: MeasuredEngines, goal: Goal, memory: MemoryBudget) -> dict[Choice, str]:
    """The configurations that are ruled out, and why."""
    rivals = _beaten(engines, goal)
    return {choice: why for choice in choices if (why := _why(choice, choices, engines, goal, memory, rivals))}


def _why(
    choice: Choice,
    choices: Sequence[Choice],
    engines: MeasuredEngines,
    goal: Goal,
    memory: MemoryBudget,
    rivals: Mapping[tuple[EngineSettings, int], str],
) -> str:
    measured = engines.get((choice.engine, choice.slots))
    if measured is None:
        return _from_one(choice, engines, goal) or "it was not measured: the time was over"
    return (
        refused(measured, goal)
        or _too_large(choice, measured, memory)
        or _too_slow(choice, choices, measured, goal)
        or rivals.get((choice.engine, choice.slots), "")
    )


def _from_one(choice: Choice, engines: MeasuredEngines, goal: Goal) -> str:
    """If one child is ruled out, several are too, because each is never faster. So they were not measured."""
    alone = engines.get((choice.engine, 1))
    return refused(alone, goal) if alone else ""


def _too_large(choice: Choice, measured: Measured, memory: MemoryBudget) -> str:
    for name, each, there in (
        ("memory", measured.memory_bytes, memory.memory_bytes),
        ("device memory", measured.device_memory_bytes, memory.device_memory_bytes),
    ):
        if there is not None and each * choice.slots > there * _MEMORY_SHARE:
            many = "1 child takes" if choice.slots == 1 else f"{choice.slots} children take"
            return f"{many} {size(each * choice.slots)} of {name}, {size(there)} is free"
    return ""


def too_many(engine: EngineSettings, slots: int, alone: Measured, memory: MemoryBudget) -> str:
    """Why this number of children would not fit into memory, estimated from one child; empty: it fits."""
    return _too_large(Choice(engine, slots=slots), alone, memory)


def _too_slow(choice: Choice, choices: Sequence[Choice], measured: Measured, goal: Goal) -> str:
    """A full batch exceeds the limit, and a smaller batch size is in the space."""
    full_s = LearnedTimes(measured.times).alone_s(choice.batch_size)
    smaller = min(other.batch_size for other in choices)
    if full_s <= goal.limit_s or choice.batch_size == smaller:
        return ""
    return f"a full batch of {choice.batch_size} alone takes {_ms(full_s)}, the limit is {_ms(goal.limit_s)}"


def _beaten(engines: MeasuredEngines, goal: Goal) -> dict[tuple[EngineSettings, int], str]:
    """Engines that are slower, at every batch size, than another one with equally many children and no more cores."""
    fit = {key: measured for key, measured in engines.items() if not refused(measured, goal)}
    beaten = {}
    for key, measured in fit.items():
        for other, rival in fit.items():
            if other != key and other[1] == key[1] and _cores(rival.engine) <= _cores(measured.engine):
                factor = _slower_by(measured, rival)
                if factor > _CLEARLY:
                    beaten[key] = f"slower than {rival.engine.label} at every batch size, by {(factor - 1):.0%} at least"
    return beaten


def _cores(engine: EngineSettings) -> int:
    return engine.threads or 1


def _slower_by(measured: Measured, rival: Measured) -> float:
    """The smallest factor over the batch sizes at which both were measured."""
    rivals = {time.size: time for time in rival.times}
    pairs = [(time, rivals[time.size]) for time in measured.times if time.size in rivals]
    whole = [(_whole_s(time), _whole_s(other)) for time, other in pairs]
    return min((mine / max(1e-9, its) for mine, its in whole), default=0.0)


def _whole_s(time: BatchTime) -> float:
    return time.preprocess_s + time.inference_s + time.postprocess_s


def _ms(seconds: float) -> str:
    return milliseconds(seconds * 1e3)
