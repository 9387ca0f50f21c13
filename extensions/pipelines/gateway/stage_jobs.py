"""The jobs that run the stages of a pipeline's job, for its timeline and its page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from penstock.broker.store.aio import AsyncStore
from penstock.extensions.pipelines.gateway.models import stages_of
from penstock.extensions.pipelines.spec import PipelineStage, stage_job
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.dashboard.parts import DashboardPart, Section
from penstock.gateway.dashboard.rows.job_rows import TONES
from penstock.gateway.extending import GatewayPart
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.services import Services
from penstock.job import Job, JobId

# The states of a stage that waits for others, and of one that never began.
WAITING, SKIPPED = "waiting", "skipped"


@dataclass(frozen=True, slots=True)
class StageJob:
    """A stage of a pipeline's job, and the job that runs it. `job` is None before its submit, and after its collection."""

    stage: PipelineStage
    id: JobId
    job: Job | None
    is_over: bool

    @property
    def status(self) -> str:
        if self.job is not None:
            return self.job.state.public
        return SKIPPED if self.is_over else WAITING

    @property
    def took_s(self) -> float | None:
        """From the submit of the stage to its end."""
        ended = self.job.finished_at if self.job is not None else None
        return max(0.0, ended - self.job.created_at) if self.job is not None and ended is not None else None

    def view(self) -> dict[str, Any]:
        """As documented in docs/reference/pipelines.md."""
        job = self.job
        view = {
            "stage": self.stage.name,
            "model": self.stage.model,
            "version": job.version if job else None,
            "id": str(self.id) if job else None,
            "status": self.status,
            "created_at": rfc3339(job.created_at) if job else None,
            "finished_at": rfc3339(job.finished_at) if job and job.finished_at else None,
            "took_s": self.took_s,
            "error": {"code": job.error.code, "message": job.error.message} if job and job.error else None,
        }
        return {name: value for name, value in view.items() if value is not None}


async def stage_jobs(store: AsyncStore, registry: ModelRegistry, job: Job) -> list[StageJob]:
    """In the order of the pipeline's stages; none for a job of another model."""
    stages = stages_of(registry, job)
    ids = [stage_job(job.id, stage) for stage in stages]
    jobs = await asyncio.gather(*(store.read(id) for id in ids))
    return [StageJob(stage, id, one, job.state.final) for stage, id, one in zip(stages, ids, jobs, strict=True)]


def gateway(services: Services) -> GatewayPart:
    async def timeline(job: Job) -> dict[str, Any]:
        stages = await stage_jobs(services.store, services.registry, job)
        return {"stage_jobs": [one.view() for one in stages]} if stages else {}

    async def section(job: Job) -> Section | None:
        stages = await stage_jobs(services.store, services.registry, job)
        shown = [(one, TONES.get(one.status, "idle")) for one in stages]
        return Section("pipelines/_stages.html", shown) if shown else None

    page = DashboardPart(templates={"pipelines": "penstock.extensions.pipelines.gateway"}, of_job=section)
    return GatewayPart(timeline=timeline, dashboard=page)
