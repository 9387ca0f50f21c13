"""The question of a search for a pipeline's settings, and its result with its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from penstock.extensions.pipelines.settings import PipelineTables
from penstock.extensions.pipelines.spec import PipelineSpec
from penstock.loadtest.generator.connection import RequestBody
from penstock.settings.tables import Settings
from penstock.tune.question import TuneQuestion
from penstock.tune.result import Choice, ConfigurationVerdict, Figures, Goal, Measured, Overheads, SearchTime

PIPELINE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class PipelineQuestion:
    """The question that a search answers. `table` is `[pipelines.NAME]` as declared; `models` holds the question about each
    model of a stage, whose inputs the search finds by itself. `folder` as for one model.
    """

    name: str
    spec: PipelineSpec
    table: Mapping[str, Any]
    models: Mapping[str, TuneQuestion]
    goal: Goal
    inputs: tuple[RequestBody, ...]
    budget_s: float = 600.0
    folder: Path | None = None


def declared_pipeline(settings: Settings, name: str) -> tuple[PipelineSpec, dict[str, Any]]:
    """A pipeline of the settings, and its table as it is declared."""
    table = settings.extension(PipelineTables).root[name]
    return table.pipeline(), table.model_dump(mode="json", exclude_defaults=True)


@dataclass(frozen=True, slots=True)
class PipelineChoice:
    """One configuration of a pipeline: a choice for each model of its stages, in the order of the stages."""

    choices: dict[str, Choice]

    @property
    def label(self) -> str:
        return "; ".join(f"{model}: {choice.label}" for model, choice in self.choices.items())

    @property
    def key(self) -> tuple[Choice, ...]:
        return tuple(self.choices.values())

    @property
    def cores(self) -> int:
        return sum(choice.slots * (choice.engine.threads or 1) for choice in self.choices.values())


@dataclass(frozen=True, slots=True)
class PipelineConfiguration:
    """A configuration and what is known of the whole. `predicted` is from simulation, `confirmed` from real load, `rerun` from
    the winner's second run. `is_declared`: the settings are those that the models have now.
    """

    choice: PipelineChoice
    verdict: ConfigurationVerdict
    why: str
    predicted: Figures | None = None
    confirmed: Figures | None = None
    rerun: Figures | None = None
    is_declared: bool = False


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """`space` and `measured` are by model. At most one of the `configurations` is the winner."""

    pipeline: str
    goal: Goal
    stages: dict[str, str]
    space: dict[str, dict[str, list[Any]]]
    measured: dict[str, tuple[Measured, ...]]
    configurations: tuple[PipelineConfiguration, ...]
    overheads: Overheads = field(default_factory=Overheads)
    machine: dict[str, Any] = field(default_factory=dict)
    spent: SearchTime = field(default_factory=SearchTime)
    notes: tuple[str, ...] = ()
    sample: str = ""
    format: int = PIPELINE_FORMAT

    @property
    def winner(self) -> PipelineConfiguration | None:
        return next((one for one in self.configurations if one.verdict is ConfigurationVerdict.WINNER), None)


# Made while one thread loads this module: D106.
_RESULT = msgspec.json.Decoder(PipelineResult)


def pipeline_json(result: PipelineResult) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=2)


def read_pipeline_result(data: bytes) -> PipelineResult:
    """Raises `msgspec.DecodeError` for anything else."""
    return _RESULT.decode(data)
