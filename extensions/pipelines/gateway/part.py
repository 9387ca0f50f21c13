"""What pipelines add to the models of a gateway: a pipeline that is loaded at run time is checked against those models."""

from __future__ import annotations

from penstock.gateway.extending import JobsHost, JobsPart
from penstock.gateway.models.parts import ModelsPart
from penstock.gateway.models.registry import ModelRegistry
from penstock.model_spec import ModelSpec


def jobs(host: JobsHost) -> JobsPart:
    return JobsPart(models=ModelsPart(check_load=_check_load))


def _check_load(registry: ModelRegistry, spec: ModelSpec) -> None:
    from penstock.extensions.pipelines.gateway.models import check_stages

    check_stages(registry, spec)
