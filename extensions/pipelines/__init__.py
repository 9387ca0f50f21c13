"""Pipelines: models that follow one another, which callers use as one model."""

from penstock.extension import Extension

extension = Extension(
    "pipelines",
    functions="penstock.extensions.pipelines:functions",
    settings={"pipelines": "penstock.extensions.pipelines.settings:PipelineTables"},
    tune="penstock.extensions.pipelines.tune.command:tuned_pipeline",
    declared="penstock.extensions.pipelines.files:declared_pipelines",
    gateway="penstock.extensions.pipelines.gateway.stage_jobs:gateway",
    jobs="penstock.extensions.pipelines.gateway.models:jobs",
    worker="penstock.extensions.pipelines.worker.part:worker_part",
)
