"""What a gateway knows of pipelines: the stages of a job, and which pipelines may be loaded."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InvalidInput
from penstock.extensions.pipelines.spec import PipelineStage, circle_of
from penstock.gateway.models.finding import unknown_model
from penstock.gateway.models.registry import ModelRegistry
from penstock.job import Job


def stages_of(registry: ModelRegistry, job: Job) -> tuple[PipelineStage, ...]:
    """The stages of a pipeline's job, as far as is known; none for a job of another model."""
    entry = registry.models.get(job.model)
    version = entry.versions.get(job.version) if entry is not None else None
    return version.info.stages if version is not None and version.info is not None else ()


def pipelines_of(registry: ModelRegistry) -> list[str]:
    """The names of all pipelines that a worker drives, in order."""
    return sorted(name for name, entry in registry.models.items() if entry.stages)


def check_stages(registry: ModelRegistry, name: str, stages: Sequence[PipelineStage]) -> None:
    """Raises `InvalidInput` for a pipeline of models that nobody knows, or that would be a stage of itself."""
    models = registry.models
    unknown = [stage for stage in stages if stage.model not in models and stage.model != name]
    faults = [f"stage {stage.name!r}: {unknown_model(stage.model, models).message}" for stage in unknown]
    known = {model: [stage.model for stage in entry.stages] for model, entry in models.items() if entry.stages}
    if circle := circle_of({**known, name: [stage.model for stage in stages]}):
        faults.append(f"pipelines {', '.join(circle)} would be stages of each other")
    if faults:
        raise InvalidInput("; ".join(faults), errors=[{"pointer": "/stages", "detail": fault} for fault in faults])
