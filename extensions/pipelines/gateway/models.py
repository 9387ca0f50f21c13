"""What a gateway knows of pipelines: the stages of a job, and which pipelines may be loaded."""

from __future__ import annotations

from penstock.errors import InvalidInput
from penstock.extensions.pipelines.spec import PipelineStage, announced_stages, circle_of, pipeline_of
from penstock.gateway.jobs.extending import JobsHost, JobsPart
from penstock.gateway.models.finding import unknown_model
from penstock.gateway.models.parts import ModelsPart
from penstock.gateway.models.registry import ModelRegistry
from penstock.job import Job
from penstock.model_spec import ModelSpec


def jobs(host: JobsHost) -> JobsPart:
    return JobsPart(models=ModelsPart(check_load=check_stages))


def stages_of(registry: ModelRegistry, job: Job) -> tuple[PipelineStage, ...]:
    """The stages of a pipeline's job, as far as is known; none for a job of another model."""
    entry = registry.models.get(job.model)
    version = entry.versions.get(job.version) if entry is not None else None
    return announced_stages(version.info) if version is not None else ()


def pipelines_of(registry: ModelRegistry) -> list[str]:
    """The names of all pipelines that a worker drives, in order."""
    return sorted(name for name, entry in registry.models.items() if announced_stages(entry.default.info))


def check_stages(registry: ModelRegistry, spec: ModelSpec) -> None:
    """Raises `InvalidInput` for a pipeline of unknown models, or one that would be a stage of itself."""
    if (pipeline := pipeline_of(spec)) is None:
        return
    name, stages, models = spec.name, pipeline.stages, registry.models
    unknown = [stage for stage in stages if stage.model not in models and stage.model != name]
    faults = [f"stage {stage.name!r}: {unknown_model(stage.model, models).message}" for stage in unknown]
    pipelines = {model: announced_stages(entry.default.info) for model, entry in models.items()}
    known = {model: [stage.model for stage in own_stages] for model, own_stages in pipelines.items() if own_stages}
    if circle := circle_of({**known, name: [stage.model for stage in stages]}):
        faults.append(f"pipelines {', '.join(circle)} would be stages of each other")
    if faults:
        raise InvalidInput("; ".join(faults), errors=[{"pointer": "/stages", "detail": fault} for fault in faults])
