"""Measures the models of a pipeline, each with the inputs that the stages before it make of the given ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import BadRequest, PenstockError
from penstock.extensions.pipelines.spec import INPUT, PipelineStage
from penstock.extensions.pipelines.tune.result import PipelineQuestion
from penstock.extensions.pipelines.worker.binding import bound_input
from penstock.job import Payload
from penstock.loadtest.generator.connection import RequestBody
from penstock.model_spec import ModelSpec
from penstock.tune.measuring.drift import ModelOutput
from penstock.tune.measuring.measure import BatchTimer
from penstock.tune.measuring.measurements import Measurements
from penstock.tune.measuring.notebook import Notebook, SearchSubject
from penstock.tune.prune import ruled_out
from penstock.tune.question import OnProgress, SearchClock, TuneQuestion
from penstock.tune.result import Choice, EngineSettings
from penstock.tune.space import choices


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """What is known of one model. `fit`: its configurations that measurements did not rule out; `whys` has the reasons against
    the others. `declared`: as it is now.
    """

    question: TuneQuestion
    measurements: Measurements
    fit: tuple[Choice, ...]
    declared: Choice
    whys: tuple[str, ...] = ()


class StageMeasurements:
    """Call `run` once. A model of several stages is measured with the inputs of the first one."""

    def __init__(self, question: PipelineQuestion, on_progress: OnProgress) -> None:
        self._question = question
        self._on_progress = on_progress
        self.models: dict[str, MeasuredModel] = {}

    def run(self) -> None:
        """Raises `BadRequest` for inputs that a stage refuses, `HandlerLoadError` for a model that does not load."""
        values = [{INPUT: Payload(body.content_type, body.data)} for body in self._question.inputs]
        for stage in self._question.spec.in_order():
            bound = [self._bound(stage, one) for one in values]
            answers = self._answers(stage, tuple(RequestBody(one.data, one.content_type) for one in bound))
            # Only the first inputs are answered, so the later stages are measured with these.
            values = [
                {**one, stage.name: Payload(answer.content_type, answer.data)}
                for one, answer in zip(values, answers, strict=False)
            ]

    def _bound(self, stage: PipelineStage, values: dict[str, Payload]) -> Payload:
        wanted = self._question.spec.wanted(stage)
        try:
            return bound_input(wanted, values, lambda one: one.data, form=stage.form, as_bytes=stage.as_bytes)
        except PenstockError as fault:
            raise BadRequest(f"stage {stage.name!r}: {fault.message}", hint="give inputs that the pipeline takes") from fault

    def _answers(self, stage: PipelineStage, inputs: tuple[RequestBody, ...]) -> Sequence[ModelOutput]:
        known = self.models.get(stage.model)
        if known is None:
            return self._measured(stage, replace(self._question.models[stage.model], inputs=inputs))
        timer = BatchTimer(known.question.spec, known.question.machine, inputs)
        answers = timer.answer_again(known.declared.engine, inputs)
        return answers[: len(answers) // 2]

    def _measured(self, stage: PipelineStage, question: TuneQuestion) -> Sequence[ModelOutput]:
        """The answers of the model as it is declared; measures every engine of its space."""
        # The models share the time, each with a clock of its own.
        question = replace(question, budget_s=self._question.budget_s / len(self._question.models))
        clock = SearchClock(question.budget_s, time.monotonic())
        notebook = _notebook(question)
        measurements = Measurements(question, clock, notebook, self._progress(stage.model))
        reference = measurements.measure_reference()
        points = choices(measurements.space, measurements.machine)
        measurements.measure_engines(points, reference)
        out = ruled_out(points, measurements.engines, question.goal, measurements.memory)
        fit = tuple(point for point in points if point not in out)
        whys = tuple(dict.fromkeys(out.values()))
        self.models[stage.model] = MeasuredModel(question, measurements, fit, declared_choice(question.spec), whys)
        return measurements.answers

    def _progress(self, model: str) -> OnProgress:
        def on_progress(step: str, share: float, text: str) -> None:
            place = list(self._question.models).index(model)
            self._on_progress(step, (place + share) / len(self._question.models), f"{model}: {text}")

        return on_progress


def declared_choice(spec: ModelSpec) -> Choice:
    """The configuration in the settings of today."""
    runtime = spec.runtime
    engine = EngineSettings(spec.device, runtime.runtime, runtime.precision, runtime.compile, spec.threads)
    slots = spec.slots if spec.device == "cpu" else spec.slots_per_device
    return Choice(engine, spec.policy.max_batch_size, spec.policy.max_wait_s, slots, spec.placement)


def _notebook(question: TuneQuestion) -> Notebook:
    """Each model has a notebook of its own: `tune.pose.jsonl` beside `tune.jsonl`."""
    path = question.resume
    own: Path | None = path.with_name(f"{path.stem}.{question.spec.name}{path.suffix}") if path else None
    notebook = Notebook(own)
    notebook.open(SearchSubject(question.spec.name, question.table, question.inputs).digest())
    return notebook


def notes_of(models: Iterator[MeasuredModel]) -> Iterator[str]:
    """What the measurements say to the user, and why all configurations of a model are out, if they are."""
    for model in models:
        yield from (f"{model.question.spec.name}: {note}" for note in model.measurements.notes)
        if not model.fit:
            yield from (f"{model.question.spec.name}: {why}" for why in model.whys)
