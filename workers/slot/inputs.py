"""From claimed jobs to what the child gets: small inputs travel with the batch, large ones as the path of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from penstock.broker.blobs.files import BlobFile, BlobStore, BlobsUnavailable
from penstock.broker.records import ClaimedJob
from penstock.workers.ipc.frames import Item
from penstock.workers.slot.batcher import Batch
from penstock.workers.slot.settlement import Absence

log = structlog.get_logger(__name__)
BLOBS_AWAY = "blobs_away"
BLOBS_BACK = "blobs_back"
INPUT_MISSING = (
    "its input is not where the worker looks for it; gateway and workers must share the folder store.blob_dir or "
    "the object store store.blob_url"
)


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch with its inputs: `items` are those of `jobs`; the inputs of `missing` are nowhere."""

    held: Batch
    jobs: tuple[ClaimedJob, ...]
    items: tuple[Item, ...]
    missing: tuple[ClaimedJob, ...] = ()


class Inputs:
    """For one slot. While the blobs cannot be fetched, its batch waits as claimed, and fetching is tried ever more seldom."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._absence = Absence()

    def again_at(self, now: float) -> float:
        """When a batch that could not be filled is worth another try; infinity when none has to wait for that."""
        return self._absence.try_at if self._absence.try_at > now else float("inf")

    def fill(self, held: Batch, now: float) -> Filled | None:
        """None while the blobs are away; `now` is monotonic."""
        if now < self._absence.try_at:
            return None
        try:
            filled = with_inputs(held, self._blobs)
        except BlobsUnavailable as away:
            if self._absence.failed(now):
                log.warning(BLOBS_AWAY, model=held.jobs[0].id.model, error=away.message, hint=away.hint)
            return None
        if self._absence.over():
            log.info(BLOBS_BACK, model=held.jobs[0].id.model)
        return filled


def with_inputs(held: Batch, blobs: BlobStore) -> Filled:
    names = [job.input.blob for job in held.jobs if job.input.blob]
    files = dict(zip(names, blobs.readable(names), strict=True)) if names else {}
    found = [(job, _item(job, files)) for job in held.jobs]
    return Filled(
        held,
        tuple(job for job, item in found if item is not None),
        tuple(item for _, item in found if item is not None),
        tuple(job for job, item in found if item is None),
    )


def _item(job: ClaimedJob, files: Mapping[str, BlobFile | None]) -> Item | None:
    if not job.input.blob:
        return Item(job.input.content_type, job.input.data, call=job.call)
    file = files[job.input.blob]
    return Item(job.input.content_type, path=str(file.path), call=job.call, own=file.own) if file else None
