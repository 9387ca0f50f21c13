"""All measurements of one search: the declared engine first, then every other engine of the space, and penstock itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from penstock.errors import HandlerLoadError
from penstock.tune.measuring.drift import ModelOutput
from penstock.tune.measuring.measure import BatchTimer, EngineMeasurement, differs_from_itself, with_drift
from penstock.tune.measuring.notebook import Notebook, key_of
from penstock.tune.overheads import measure_overheads
from penstock.tune.prune import MemoryBudget, refused, too_many
from penstock.tune.question import OnProgress, SearchClock, TuneQuestion
from penstock.tune.result import Choice, EngineSettings, Measured, Overheads
from penstock.tune.space import TuneMachine, default_space

# The share of the budget after which no further engine is measured.
_MEASURED_BY = 0.45
_SLICE_LEAST_S, _SLICE_MOST_S = 0.1, 0.6
_MEASURED, _OVERHEADS, _AGAIN = "measured", "overheads", "again"
_OVERHEADS_LEAST_S, _OVERHEADS_MOST_S = 1.0, 3.0


class Measurements:
    """`engines`: the measurement of each engine and number of slots; `space`: the searched values of each dimension;
    `answers`: those of the declared engine to the first inputs.
    """

    def __init__(self, question: TuneQuestion, clock: SearchClock, notebook: Notebook, on_progress: OnProgress) -> None:
        self._question = question
        self._clock = clock
        self._notebook = notebook
        self._on_progress = on_progress
        self.engines: dict[tuple[EngineSettings, int], Measured] = {}
        self.space: dict[str, tuple[Any, ...]] = {}
        self.notes: list[str] = []
        self.answers: tuple[ModelOutput, ...] = ()

    def measure_reference(self) -> EngineMeasurement:
        """Measure the declared engine, whose answers are the reference for drift. It also shows the handler's largest batch."""
        spec, named, machine = self._question.spec, self._question.named, self.machine
        self.space = {**default_space(spec, machine), **named}
        engine = EngineSettings(
            spec.device,
            spec.runtime.runtime,
            spec.runtime.precision,
            spec.runtime.compile,
            self.space["threads"][0],
            self.space["pinning"][0],
        )
        self._on_progress("measure", 0.0, engine.label)
        reference = self._measured(engine, 1, slice_s=_SLICE_LEAST_S * 2)
        if reference.measured.error:
            raise HandlerLoadError(f"{spec.name} does not run as it is declared: {reference.measured.error}")
        self.answers = reference.answers
        if reference.largest is not None:
            self.space = {**default_space(spec, machine, largest_batch=reference.largest), **named}
            fitting = tuple(size for size in self.space["batch_size"] if size <= reference.largest)
            self.space["batch_size"] = fitting or (reference.largest,)
        if not self._question.inputs:
            self.notes.append("the input was made from what the model declares: give real ones with --input")
        return self._without_random_answers(reference)

    def _without_random_answers(self, reference: EngineMeasurement) -> EngineMeasurement:
        """The measurement; without answers if the model's own repeats differ, because drift then cannot be judged."""
        question = self._question
        engine = reference.measured.engine
        again = self._notebook.get(_AGAIN, key_of(engine), list[ModelOutput])
        if again is None:
            again = BatchTimer(question.spec, question.machine, question.inputs).answer_again(engine, reference.inputs)
            self._notebook.put(_AGAIN, key_of(engine), again)
        how = differs_from_itself(reference, again, tolerance=question.goal.tolerance)
        if not how:
            return reference
        self.notes.append(
            f"the model's output is random: asked the same again, {how}. No configuration is excluded for its answers; "
            "give the model a fixed seed if they are to be compared"
        )
        return replace(reference, answers=())

    def measure_engines(self, points: Sequence[Choice], reference: EngineMeasurement) -> None:
        """Measure every engine of the points, with each number of slots, except engines that are already ruled out."""
        engines: dict[EngineSettings, set[int]] = {}
        for point in points:
            engines.setdefault(point.engine, set()).add(point.slots)
        wanted = [(engine, slots) for engine, counts in engines.items() for slots in sorted({1, *counts})]
        slice_s = self._slice_s(len(wanted), reference.measured.load_s)
        for number, (engine, slots) in enumerate(wanted):
            self._on_progress("measure", number / len(wanted), f"{slots} x {engine.label}")
            if self._clock.past(_MEASURED_BY) and self.engines:
                break
            alone = self.engines.get((engine, 1))
            if alone is not None and slots > 1 and self._is_pointless(engine, slots, alone):
                continue
            measurement = self._measured(engine, slots, slice_s=slice_s)
            self.engines[engine, slots] = with_drift(measurement, reference)

    def measure_overheads(self, folder: Path) -> Overheads:
        known = self._notebook.get(_OVERHEADS, "", Overheads)
        if known is not None:
            return known
        self._on_progress("overheads", 0.0, "a model that does nothing, on a stack of its own")
        seconds = min(_OVERHEADS_MOST_S, max(_OVERHEADS_LEAST_S, self._question.budget_s / 100))
        overheads = measure_overheads(folder, seconds=seconds)
        self._notebook.put(_OVERHEADS, "", overheads)
        return overheads

    @property
    def machine(self) -> TuneMachine:
        machine = self._question.machine
        return TuneMachine(machine.topology.budget, len(machine.gpus.units))

    @property
    def memory(self) -> MemoryBudget:
        """The memory that is free now."""
        units = self._question.machine.gpus.units
        free = min((unit.free_bytes for unit in units), default=0)
        return MemoryBudget(int(psutil.virtual_memory().available), free or None)

    def _is_pointless(self, engine: EngineSettings, slots: int, alone: Measured) -> bool:
        """Whether a single child is already ruled out, or memory does not fit this many."""
        return bool(refused(alone, self._question.goal) or too_many(engine, slots, alone, self.memory))

    def _slice_s(self, measurements: int, load_s: float) -> float:
        """The time for each batch size, so that all measurements end within their share of the budget."""
        sizes = len(self.space["batch_size"]) + 1
        each_s = self._question.budget_s * _MEASURED_BY / max(1, measurements) - load_s - 1.0
        return min(_SLICE_MOST_S, max(_SLICE_LEAST_S, each_s / sizes))

    def _measured(self, engine: EngineSettings, slots: int, *, slice_s: float) -> EngineMeasurement:
        """From the notebook if an earlier search measured it."""
        sizes = sorted({1, *self.space["batch_size"]})
        key = key_of((engine, slots, sizes))
        known = self._notebook.get(_MEASURED, key, EngineMeasurement)
        if known is not None:
            return known
        question = self._question
        measurement = BatchTimer(question.spec, question.machine, question.inputs, slice_s).measure(engine, slots, sizes)
        self._notebook.put(_MEASURED, key, measurement)
        return measurement
