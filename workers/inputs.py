"""From claimed jobs to what the child gets: small inputs travel with the batch, large ones as the path of their blob."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.broker.blobs import BlobStore
from penstock.broker.records import ClaimedJob
from penstock.workers.batcher import Held
from penstock.workers.frames import Item

INPUT_MISSING = "its input is not in the worker's blob folder; gateway and workers must share the folder store.blob_dir"


@dataclass(frozen=True, slots=True)
class Filled:
    """A batch with its inputs: `items` are those of `jobs`; the inputs of `missing` are not on this machine."""

    held: Held
    jobs: tuple[ClaimedJob, ...]
    items: tuple[Item, ...]
    missing: tuple[ClaimedJob, ...] = ()


def with_inputs(held: Held, blobs: BlobStore) -> Filled:
    found = [(job, _item(job, blobs)) for job in held.jobs]
    return Filled(
        held,
        tuple(job for job, item in found if item is not None),
        tuple(item for _, item in found if item is not None),
        tuple(job for job, item in found if item is None),
    )


def _item(job: ClaimedJob, blobs: BlobStore) -> Item | None:
    if not job.input.blob:
        return Item(job.input.content_type, job.input.data, call=job.call)
    path = blobs.local_path(job.input.blob)
    return Item(job.input.content_type, path=str(path), call=job.call) if path else None
