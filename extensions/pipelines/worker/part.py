"""What a worker does for pipelines: in the slot of a pipeline, an executor stands in for a child process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from selectors import BaseSelector

from penstock.broker.records import ClaimedJob
from penstock.extensions.pipelines.spec import PipelineSpec, pipeline_of
from penstock.model_spec import ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.fleet.parts import ChildStandIn, WorkerHost, WorkerPart
from penstock.workers.ipc.frames import Item
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.slot_child import Locate, SlotChild
from penstock.workers.slot.claims import Inputs


class PipelineInputs(Inputs):
    """A pipeline passes its inputs on by reference, so nothing is fetched here."""

    def fill(self, batch: Batch, now: float, *, asks: bool = False) -> tuple[Batch, list[ClaimedJob]] | None:
        return replace(batch, items=tuple(Item(job.input.content_type) for job in batch.jobs)), []


def worker_part(host: WorkerHost) -> WorkerPart:
    def stand_in(spec: ModelSpec) -> ChildStandIn | None:
        pipeline = pipeline_of(spec)
        return _driven(pipeline, host) if pipeline is not None else None

    return WorkerPart(stand_in=stand_in)


def _driven(pipeline: PipelineSpec, host: WorkerHost) -> ChildStandIn:
    # Few workers have pipelines, and the others do without their executor.
    from penstock.broker.store.aio import AsyncStore
    from penstock.extensions.pipelines.worker.stand_in import PipelineStandIn

    store = host.settings.store
    open_store = partial(AsyncStore, host.settings.job_store_url, replicated=store.durability == "replicated")

    def new_child(spec: ModelSpec, pin: Pin, selector: BaseSelector, locate: Locate, *, max_batch_size: int) -> SlotChild:
        return PipelineStandIn(
            spec, pipeline, selector, open_store=open_store, blobs=host.blobs, inline_bytes=store.inline_input_bytes
        )

    return ChildStandIn(new_child, PipelineInputs)
