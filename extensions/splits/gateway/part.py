"""What splits add to the models and jobs of a gateway. Few models have a split, and a gateway of others loads no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.gateway.jobs.extending import JobsHost, JobsPart
from penstock.gateway.models.parts import ModelsPart, VersionChooser
from penstock.gateway.models.registry import ModelRegistry, VersionEntry
from penstock.job import JobId
from penstock.rollout import Rollout

if TYPE_CHECKING:
    from penstock.extensions.splits.gateway.canaries import CanaryJudge
    from penstock.extensions.splits.gateway.shadows import Shadows
    from penstock.gateway.jobs.submitting.draft import SubmitRequest
    from penstock.gateway.jobs.submitting.submitter import Submitter


class ModelSplits:
    """The splits of one gateway's models."""

    def __init__(self, host: JobsHost) -> None:
        self._store, self._blobs = host.store, host.blobs
        self._judge: CanaryJudge | None = None
        self._shadows: Shadows | None = None

    def chooser(self, model: str, rollout: Rollout, versions: Mapping[str, VersionEntry]) -> VersionChooser | None:
        if not rollout.split:
            return None
        from penstock.extensions.splits.gateway.entry import split_entry

        return split_entry(rollout.split, model, versions)

    async def judge(self, registry: ModelRegistry) -> None:
        """Move the canaries that are due."""
        chosen = [entry for entry in registry.models.values() if entry.chooser is not None]
        if not chosen:
            return
        from penstock.extensions.splits.gateway.canaries import CanaryJudge, is_deciding

        deciding = [entry for entry in chosen if is_deciding(entry)]
        if deciding:
            self._judge = self._judge or CanaryJudge(self._store)
            await self._judge.judge(registry.rollouts, deciding)

    def copy(self, submitter: Submitter, request: SubmitRequest, job: JobId) -> None:
        """Have the split's shadow get a copy if this request is one of its share."""
        from penstock.extensions.splits.gateway.entry import split_in

        split = split_in(request.model)
        if split is None or not split.is_copied():
            return
        if self._shadows is None:
            from penstock.extensions.splits.gateway.shadows import Shadows

            self._shadows = Shadows(submitter, self._store, self._blobs)
        self._shadows.copy(request, job)


def check_unload(rollout: Rollout, model: str, version: str) -> None:
    """Raises `Conflict` for a version that the split of its model needs."""
    if rollout.split:
        from penstock.extensions.splits.split import check_unused

        check_unused(rollout.split, model, version)


def jobs(host: JobsHost) -> JobsPart:
    splits = ModelSplits(host)
    models = ModelsPart(chooser=splits.chooser, on_refresh=splits.judge, check_unload=check_unload)
    return JobsPart(models=models, on_chosen=splits.copy)
