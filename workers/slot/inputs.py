"""From claimed jobs to what the child gets: small inputs travel with the batch, large ones as the path of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import structlog

from penstock.broker.blobs.files import BlobFile, BlobStore, BlobsUnavailable
from penstock.broker.records import ClaimedJob
from penstock.workers.ipc.frames import Item
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.settlement import Absence

log = structlog.get_logger(__name__)
BLOBS_AWAY = "blobs_away"
BLOBS_BACK = "blobs_back"
INPUT_MISSING = (
    "its input is not where the worker looks for it; gateway and workers must share the folder store.blob_dir or "
    "the object store store.blob_url"
)


class Inputs:
    """One slot's access to inputs. While the blob store is away its batch waits as claimed, and tries become ever rarer."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._absence = Absence()

    def again_at(self, now: float) -> float:
        """When to try again to fill a batch; infinity if no batch waits for that."""
        return self._absence.try_at if self._absence.try_at > now else float("inf")

    def fill(self, batch: Batch, now: float) -> tuple[Batch, list[ClaimedJob]] | None:
        """The batch with the items of those jobs whose inputs were found, and the other jobs.

        None while the blob store is away. `now` is monotonic.
        """
        if now < self._absence.try_at:
            return None
        try:
            filled = _with_inputs(batch, self._blobs)
        except BlobsUnavailable as away:
            if self._absence.on_failure(now):
                log.warning(BLOBS_AWAY, model=batch.jobs[0].id.model, error=away.message, hint=away.hint)
            return None
        if self._absence.on_answer():
            log.info(BLOBS_BACK, model=batch.jobs[0].id.model)
        return filled


def _with_inputs(batch: Batch, blobs: BlobStore) -> tuple[Batch, list[ClaimedJob]]:
    names = [job.input.blob for job in batch.jobs if job.input.blob]
    files = dict(zip(names, blobs.readable(names), strict=True)) if names else {}
    pairs = [(job, _item(job, files)) for job in batch.jobs]
    missing = [job for job, item in pairs if item is None]
    jobs = batch.jobs if not missing else tuple(job for job, item in pairs if item is not None)
    return replace(batch, jobs=jobs, items=tuple(item for _, item in pairs if item is not None)), missing


def _item(job: ClaimedJob, files: Mapping[str, BlobFile | None]) -> Item | None:
    if not job.input.blob:
        return Item(job.input.content_type, job.input.data, call=job.call)
    file = files[job.input.blob]
    return Item(job.input.content_type, path=str(file.path), call=job.call, own=file.own) if file else None
