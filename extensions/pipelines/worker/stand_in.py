"""Stands in for a child process in a slot, and passes its batches to the executor of a pipeline."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from selectors import EVENT_READ, BaseSelector

from penstock.broker.blobs.files import BlobStore
from penstock.broker.records import BatchStamp, Ending
from penstock.broker.store.aio import AsyncStore
from penstock.extensions.pipelines.spec import PipelineSpec
from penstock.extensions.pipelines.worker.drive import Driven
from penstock.extensions.pipelines.worker.executor import DriveEnded, DriveSaid, ExecutorEvent, PipelineExecutor, PipelineKnown
from penstock.extensions.pipelines.worker.in_flight import PipelinesInFlight
from penstock.model_spec import ModelSpec, VersionInfo
from penstock.workers.ipc.frames import ItemReport, ItemReports, Ready
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.child.ending import Restarts
from penstock.workers.slot.child.events import BatchEnded, ChildReady, ChildUnloadable, Event
from penstock.workers.slot.child.in_flight import InFlight

_EXECUTOR = "executor"
# Stands in a batch's stamp where batches of other models have the reason for their release.
PIPELINE = "pipeline"
_NEVER = float("inf")


class PipelineStandIn:
    """See `SlotChild`. It starts no process: the executor is a thread, and stages run in the slots of their own models."""

    runs_model_code = False

    def __init__(
        self,
        spec: ModelSpec,
        pipeline: PipelineSpec,
        selector: BaseSelector,
        *,
        open_store: Callable[[], AsyncStore],
        blobs: BlobStore,
        inline_bytes: int,
    ) -> None:
        self._selector = selector
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._executor = PipelineExecutor(
            spec.name, pipeline, open_store=open_store, blobs=blobs, inline_bytes=inline_bytes, on_event=self._on_event
        )
        self._in_flight = PipelinesInFlight(self._executor, at_once=pipeline.at_once)
        self._at_once = pipeline.at_once
        self._started_at = 0.0
        self.in_flight: InFlight = self._in_flight
        self.restarts = Restarts()
        self.is_paused = self.asks = False
        self.state, self.error = "loading", ""
        self.load_s = self.start_s = 0.0
        self.provider = self.source = ""

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def is_taking(self) -> bool:
        return self.state == "ready"

    @property
    def is_taking_shards(self) -> bool:
        return False

    @property
    def is_worn(self) -> bool:
        return False

    def tend(self, now: float) -> list[Event]:
        if not self._started_at:
            self._started_at = now
            self._selector.register(self._signal, EVENT_READ, _EXECUTOR)
            self._executor.start()
        return []

    def end_if_hung(self, now: float) -> bool:
        """The store takes back the jobs of an executor that no longer turns: it shows no sign of life."""
        return False

    def due_at(self, *, is_draining: bool) -> float:
        return _NEVER if self._started_at or is_draining else 0.0

    def _on_event(self) -> None:
        os.eventfd_write(self._signal, 1)

    def handle(self, source: str, mask: int, now: float) -> list[Event]:
        os.eventfd_read(self._signal)
        events: list[Event] = []
        while self._executor.events:
            event = self._event(self._executor.events.popleft(), now)
            events += [event] if event is not None else []
        return events

    def _event(self, event: ExecutorEvent, now: float) -> Event | None:
        match event:
            case DriveEnded(number, driven):
                batch = self._in_flight.on_ended(number)
                return BatchEnded(_ended(batch, driven, now)) if batch is not None else None
            case DriveSaid(number, fraction, note):
                return self._in_flight.on_said(ItemReports(number, [ItemReport(0, fraction, note)]), now)
            case PipelineKnown(info):
                self.load_s = self.load_s or now - self._started_at
                self.state, self.error = "ready", ""
                return ChildReady(_ready(info, self.load_s, self._at_once))
            case _:
                self.state, self.error = "failed", event.error
                return ChildUnloadable(event.error)

    def give(self, batch: Batch, now: float) -> None:
        self._in_flight.give(batch, now)

    def pause(self, now: float, *, is_paused: bool) -> None:
        """Each report of a drive's progress replaces the one before, so there is nothing to hold back."""
        self.is_paused = is_paused

    def reload(self, now: float) -> None:
        """No code of a model runs here."""

    def close(self) -> None:
        if self._started_at:
            self._selector.unregister(self._signal)
            self._executor.stop()
        os.close(self._signal)


def _ready(info: VersionInfo, load_s: float, at_once: int) -> Ready:
    schemas = info.input_schema, info.output_schema
    return Ready(
        load_s=load_s,
        description=info.description,
        accepts=info.accepts,
        schemas=schemas,
        at_once=at_once,
        answers=info.answers,
        stages=info.stages,
    )


def _ended(batch: Batch, driven: Driven, now: float) -> Batch:
    """The batch with the end of its one job. The time of all stages stands where other models have that of their run."""
    [job] = batch.jobs
    ending = Ending(job.id, job.token, driven.state, driven.output, driven.code, driven.message)
    stamp = BatchStamp(batch.nonce, 1, PIPELINE, inference_s=max(0.0, now - batch.given_at))
    return replace(batch, endings=(ending,), stamp=stamp, needless=driven.needless)
