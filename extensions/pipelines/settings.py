"""The settings of pipelines: stages that are models, checked together with the models."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import Field, RootModel, ValidationError, model_validator

from penstock.errors import ConfigError
from penstock.extensions.pipelines.spec import MOST_AT_ONCE, NAME, PipelineSpec, PipelineStage, circle_of, faults
from penstock.model_spec import BatchPolicy, Limits, ModelInfo, ModelSpec
from penstock.settings.extension_tables import ExtensionTable
from penstock.settings.faults import explain
from penstock.settings.keys import Table
from penstock.settings.models import JobFields, Name, ServedFields

if TYPE_CHECKING:
    from penstock.settings.tables import Settings

# The most jobs that one claim takes. All of them begin at once.
_CLAIMED = BatchPolicy(max_batch_size=64, max_wait_s=0.0)


class StageSettings(Table):
    """One stage: see `PipelineStage`. `model` is one of the settings, or another pipeline."""

    name: str
    model: Name
    version: str = ""
    after: tuple[str, ...] = ()
    input: str | dict[str, str] = ""
    form: bool = False
    as_bytes: bool = False


class PipelineSettings(JobFields, ServedFields):
    """A pipeline, which callers use like a model of its name. One worker drives at most `at_once` of its jobs at a time. The
    limits are those of models: `deadline_s` is for all stages together. `elsewhere`: models of stages that these settings lack,
    because those of other workers have them, or because they are loaded at run time. `request_headers` are passed to the stages
    that get the whole input. `registered_from`: the workflow of TorchServe's that it came from.
    """

    stages: tuple[StageSettings, ...]
    output: str | dict[str, str] = ""
    elsewhere: tuple[Name, ...] = ()
    registered_from: str = ""
    at_once: int = Field(default=PipelineSpec(()).at_once, ge=1, le=MOST_AT_ONCE)

    @model_validator(mode="after")
    def _stages_fit_together(self) -> PipelineSettings:
        if wrong := list(faults(self.pipeline())):
            raise ValueError("; ".join(wrong))
        return self

    def pipeline(self) -> PipelineSpec:
        stages = [PipelineStage(**{name: getattr(stage, name) for name in StageSettings.model_fields}) for stage in self.stages]
        return PipelineSpec(tuple(stages), self.output, self.at_once)

    def limits(self) -> Limits:
        own = ("max_queue_depth", "deadline_s", "bulk_deadline_s", "result_ttl_s", "sync_result_ttl_s")
        return Limits(**{name: getattr(self, name) for name in own})


def pipeline_spec(name: str, table: PipelineSettings) -> ModelSpec:
    return ModelSpec(
        name,
        "",
        table.version,
        policy=_CLAIMED,
        limits=table.limits(),
        request_headers=table.request_headers,
        driven_by=NAME,
        driven_how=table.pipeline(),
    )


def added_pipeline(name: str, version: str, table: Mapping[str, Any]) -> ModelSpec:
    """The spec of a pipeline that is loaded at run time. Raises `ConfigError` with every fault."""
    try:
        return pipeline_spec(name, PipelineSettings.model_validate({**table, "version": version}))
    except ValidationError as invalid:
        raise ConfigError("this pipeline cannot be used:", faults=explain(invalid, PipelineSettings, {})) from None


def pipeline_info(name: str, table: PipelineSettings) -> ModelInfo:
    return ModelInfo(
        name,
        table.version,
        _CLAIMED,
        table.limits(),
        versions={table.version: None},
        request_headers=table.request_headers,
        partitions=table.partitions,
        held=table.partitions,
    )


def pipeline_faults(pipelines: Mapping[str, PipelineSettings], models: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with pipelines beside their models, in whole sentences."""
    for name, table in pipelines.items():
        if name in models:
            yield f"pipelines.{name}: there is a model of this name too; give the pipeline its own"
        known = [*models, *pipelines, *table.elsewhere]
        for stage in table.stages:
            yield from _unknown_model(f"pipelines.{name}: stage {stage.name!r}", stage.model, known)
    if circle := circle_of({name: [stage.model for stage in table.stages] for name, table in pipelines.items()}):
        yield f"pipelines {', '.join(circle)}: each is a stage of itself by way of the others, so none could ever end"


def _unknown_model(where: str, model: str, known: Sequence[str]) -> Iterator[str]:
    if model in known:
        return
    near = get_close_matches(model, known, n=1)
    meant = f"did you mean {near[0]}?" if near else f"declare it in [models.{model}], or name it in `elsewhere`"
    yield f"{where}: no model is named {model!r}; {meant}"


class PipelineTables(ExtensionTable, RootModel[dict[Name, PipelineSettings]]):
    """The pipelines by name: models that workers drive through their stages."""

    root: dict[Name, PipelineSettings] = Field(default_factory=dict)

    @classmethod
    def added(cls, name: str, version: str, table: Mapping[str, Any]) -> ModelSpec | None:
        return added_pipeline(name, version, table) if "stages" in table else None

    def faults(self, settings: Settings) -> Iterator[str]:
        return pipeline_faults(self.root, settings.models)

    def specs(self) -> list[ModelSpec]:
        return [pipeline_spec(name, table) for name, table in self.root.items()]

    def infos(self) -> list[ModelInfo]:
        return [pipeline_info(name, table) for name, table in self.root.items()]

    def only(self, names: Collection[str]) -> PipelineTables:
        return PipelineTables({name: table for name, table in self.root.items() if name in names})
