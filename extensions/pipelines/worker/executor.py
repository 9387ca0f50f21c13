"""The executor of one pipeline: an event loop in a thread of its own, in which hundreds of drives are open at once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from penstock.broker.blobs.files import BlobStore
from penstock.broker.store.aio import AsyncStore
from penstock.errors import InternalError, PenstockError
from penstock.extensions.pipelines.spec import PipelineSpec, stage_job
from penstock.extensions.pipelines.store import answered
from penstock.extensions.pipelines.worker.drive import Drive, Driven, DriveServices
from penstock.extensions.pipelines.worker.joiner import Joiner
from penstock.extensions.pipelines.worker.leftovers import Leftovers
from penstock.extensions.pipelines.worker.stage_models import StageModels, described
from penstock.job import JobId, JobState
from penstock.model_spec import VersionInfo
from penstock.workers.slot.batch import Batch

log = structlog.get_logger(__name__)
DRIVE_BROKE = "drive_broke"
DRIVER_BROKE = "driver_broke"
_TICK_S = 1.0
_LOOK_S = 0.5
_DESCRIBE_S = 5.0
_STOPS_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class PipelineKnown:
    """Every stage's model is known; holds what callers learn of the pipeline."""

    info: VersionInfo


@dataclass(frozen=True, slots=True)
class PipelineUnusable:
    """Why the pipeline cannot be driven now: the model of a stage is unknown."""

    error: str


@dataclass(frozen=True, slots=True)
class DriveSaid:
    number: int
    fraction: float
    note: str


@dataclass(frozen=True, slots=True)
class DriveEnded:
    number: int
    driven: Driven


ExecutorEvent = PipelineKnown | PipelineUnusable | DriveSaid | DriveEnded


class PipelineExecutor:
    """`start` begins the thread. Any thread may call the rest; `on_event` is called when `events` has something new.

    `model`: the name of the pipeline, whose `version` it drives.
    """

    def __init__(
        self,
        model: str,
        spec: PipelineSpec,
        *,
        open_store: Callable[[], AsyncStore],
        blobs: BlobStore,
        inline_bytes: int,
        on_event: Callable[[], None],
    ) -> None:
        self._model, self._spec = model, spec
        self._open_store, self._blobs, self._inline_bytes = open_store, blobs, inline_bytes
        self._on_event = on_event
        self.events: deque[ExecutorEvent] = deque()
        self.ticks = 0
        self._loop = asyncio.new_event_loop()
        self._drives: dict[int, tuple[Drive, asyncio.Task[None]]] = {}
        self._services: DriveServices | None = None
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name=f"pipeline-{model}", daemon=True)

    # From the slot's thread.

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Abort every drive, and end the thread."""
        self._call(self._stopping.set)
        self._thread.join(timeout=_STOPS_WITHIN_S)

    def begin(self, number: int, batch: Batch) -> None:
        self._call(self._begin, number, batch)

    def give_up(self, number: int, *, is_late: bool) -> None:
        self._call(self._give_up, number, is_late)

    def break_off(self, number: int) -> None:
        self._call(self._break_off, number)

    def _call(self, work: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing is open any more
            self._loop.call_soon_threadsafe(work, *args)

    # In the loop.

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:
            # The slot sees that the ticks stand still, and the store takes the jobs back.
            log.exception(DRIVER_BROKE, model=self._model)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        store = self._open_store()
        await store.start()
        self._services = DriveServices(store, Joiner(self._blobs), StageModels(store), self._inline_bytes)
        leftovers = Leftovers(store, self._model, self._stage_jobs)
        work = [asyncio.create_task(one) for one in (self._tick(), self._describe(), leftovers.run())]
        try:
            await self._stopping.wait()
        finally:
            for task in (*work, *(task for _, task in self._drives.values())):
                task.cancel()
            await asyncio.gather(*work, *(task for _, task in self._drives.values()), return_exceptions=True)
            await store.close()

    async def _tick(self) -> None:
        while True:
            self.ticks += 1
            await asyncio.sleep(_TICK_S)

    async def _describe(self) -> None:
        """Tell the slot what the pipeline is, once each stage's model is known, and again when an operator has switched one of
        them to a version that takes or gives something else.
        """
        assert self._services is not None
        models, said, known = self._services.models, "", None
        while True:
            try:
                info = await answered(lambda: described(self._spec, models))
            except PenstockError as error:
                # Once the pipeline is known, a job whose stage has lost its model reports that itself.
                if known is None and error.message != said:
                    said = error.message
                    self._tell(PipelineUnusable(said))
            else:
                if info is not None and info != known:
                    known = info
                    self._tell(PipelineKnown(info))
            await asyncio.sleep(_LOOK_S if known is None else _DESCRIBE_S)

    def _stage_jobs(self, job: JobId) -> list[JobId]:
        return [stage_job(job, stage) for stage in self._spec.stages]

    def _begin(self, number: int, batch: Batch) -> None:
        assert self._services is not None
        drive = Drive(self._spec, batch, self._services, lambda done, note: self._tell(DriveSaid(number, done, note)))
        self._drives[number] = drive, asyncio.create_task(self._run(number, drive, batch))

    async def _run(self, number: int, drive: Drive, batch: Batch) -> None:
        try:
            driven = await drive.run()
        except Exception as error:
            log.exception(DRIVE_BROKE, model=self._model, job_id=str(batch.jobs[0].id))
            bug = InternalError(f"{type(error).__name__}: {error}")
            driven = Driven(JobState.FAILED, code=bug.kind, message=bug.message)
        self._drives.pop(number, None)
        self._tell(DriveEnded(number, driven))

    def _give_up(self, number: int, is_late: bool) -> None:
        if (entry := self._drives.get(number)) is not None:
            entry[0].give_up(is_late=is_late)

    def _break_off(self, number: int) -> None:
        if (entry := self._drives.pop(number, None)) is not None:
            entry[1].cancel()

    def _tell(self, event: ExecutorEvent) -> None:
        self.events.append(event)
        self._on_event()
