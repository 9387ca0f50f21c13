"""One job of a pipeline, from its claim to its end: stages are submitted, awaited, and their outputs passed on.

A drive may be aborted at any moment and restarted elsewhere. The jobs of the stages have ids that follow from the pipeline's
job, so another drive finds those that were submitted, and submits none of them twice.
"""

# D100: docs/design/pipelines.md

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from penstock.backoff import BackoffCounter
from penstock.broker.records import Ending, NewJob, Push, SubmitStatus, Submitted
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.notifications import Waiter
from penstock.errors import Gone, InternalError, InvalidInput, PenstockError
from penstock.extensions.pipelines.spec import INPUT, PipelineSpec, PipelineStage, Wanted, stage_job
from penstock.extensions.pipelines.store import AGAIN, answered, begin_drive
from penstock.extensions.pipelines.worker.binding import bound_input, bound_result
from penstock.extensions.pipelines.worker.joiner import Joiner
from penstock.extensions.pipelines.worker.progress import FailedStage, PipelineProgress, StageEnd, needless_blobs
from penstock.extensions.pipelines.worker.stage_models import StageModels
from penstock.failpoints import failpoint
from penstock.job import Call, Job, JobId, JobState, Payload
from penstock.outputs.bundle import BUNDLE_MEDIA
from penstock.workers.ipc.frames import INPUT_MISSING_CODE
from penstock.workers.slot.batch import Batch, blob_name

log = structlog.get_logger(__name__)
# How often a silent stage is looked up: its record may be gone.
_LOOK_S = 30.0
# A pipeline may end this much after its deadline. Its stages are kept for as long as its own record, and this longer.
_LATE_S = 120.0
# A larger result becomes a blob before it waits to be settled; a smaller one is stored as any model's.
_HELD_BYTES = 1 << 20
EXPIRED = "expired"
STAGE_CANCELLED = "stage_cancelled"
STAGE_LOST = "stage_lost"
STAGE_SUBMITTED_AGAIN = "stage_submitted_again"
OnProgress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Driven:
    """How a job of a pipeline ended: an output or an error. `needless`: blobs that are not needed once that is settled."""

    state: JobState
    output: Payload | None = None
    code: str = ""
    message: str = ""
    needless: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DriveServices:
    """What all drives of a process share. Inputs over `inline_bytes` become blobs."""

    store: AsyncStore
    joiner: Joiner
    models: StageModels
    inline_bytes: int


class Drive:
    """For one event loop. `batch` has the one claimed job. Cancelling `run` aborts the drive, and its stages go on."""

    def __init__(self, spec: PipelineSpec, batch: Batch, services: DriveServices, on_progress: OnProgress) -> None:
        [self._job] = batch.jobs
        self._spec, self._services, self._on_progress = spec, services, on_progress
        self._deadline = batch.on_this_clock(self._job.deadline_at)
        # Before the first claim no stage can have been submitted, so there is nothing to look for.
        self._is_first = self._job.token.partition(":")[0] == "1"
        self._progress = PipelineProgress(spec)
        self._openings: dict[asyncio.Task[StageEnd | None], PipelineStage] = {}
        self._submits: set[asyncio.Future[Submitted]] = set()
        self._stages = {stage_job(self._job.id, stage): stage for stage in spec.stages}
        self._waiter: Waiter | None = None
        self._is_late = False
        self._kept_s = 0.0

    def give_up(self, *, is_late: bool) -> None:
        """The result is no longer wanted: the job was cancelled, or its deadline has passed."""
        self._is_late = self._is_late or is_late
        self._progress.give_up()
        if self._waiter is not None:
            self._waiter.wake()

    async def run(self) -> Driven:
        if self._job.call is not Call.PREDICT:
            return Driven(JobState.FAILED, code=InvalidInput.kind, message="a pipeline only predicts; its models may explain")
        self._kept_s = await answered(lambda: self._services.store.run(begin_drive(self._job.id)))
        try:
            with self._services.store.waiter(*self._stages) as self._waiter:
                while not self._progress.is_over:
                    self._open_due()
                    await self._next(self._waiter)
            return await self._end()
        finally:
            for opening in self._openings:
                opening.cancel()

    # Stages begin.

    def _open_due(self) -> None:
        for stage in self._progress.due():
            self._begin(stage)
            self._on_progress(self._progress.fraction, self._progress.note)

    def _begin(self, stage: PipelineStage) -> None:
        opening = asyncio.create_task(self._open(stage))
        self._openings[opening] = stage
        opening.add_done_callback(self._on_opened)

    def _on_opened(self, opening: asyncio.Task[StageEnd | None]) -> None:
        stage = self._openings.pop(opening, None)
        if stage is None or opening.cancelled():
            return
        try:
            if (end := opening.result()) is not None:
                self._on_end(stage, end)
        except PenstockError as error:
            self._on_end(stage, StageEnd(JobState.FAILED, code=_code_of(error), message=error.message))
        except Exception as error:  # noqa: BLE001 - a bug ends this pipeline, whose error names the stage
            bug = InternalError(f"{type(error).__name__}: {error}")
            self._on_end(stage, StageEnd(JobState.FAILED, code=bug.kind, message=bug.message))
        if self._waiter is not None:
            self._waiter.wake()

    async def _open(self, stage: PipelineStage) -> StageEnd | None:
        """Submit the stage, unless that was done before; its end, if it has ended already."""
        id = stage_job(self._job.id, stage)
        known = None if self._is_first else await self._look(id)
        if known is None:
            input = await self._input(stage, id)
            failpoint("before_stage_submit")
            if await self._submit(stage, id, input):
                failpoint("after_stage_submit")
                return None
            known = await self._look(id) or _lost(id)
        return known if known.state.final else None

    async def _look(self, id: JobId) -> StageEnd | None:
        """The state of a stage's job, whose end is pushed to this process from now on; None if there is no such job."""
        store = self._services.store
        watched = await answered(partial(store.watch, id))
        if watched is None or not watched.state.final:
            return StageEnd(watched.state) if watched is not None else None
        ended = await answered(partial(store.result, id))
        return None if ended is None else _end_of(*ended)

    async def _input(self, stage: PipelineStage, id: JobId) -> Payload:
        wanted, joiner = self._spec.wanted(stage), self._services.joiner
        bind = partial(bound_input, wanted, form=stage.form, as_bytes=stage.as_bytes)
        # The blob bears the stage's serial, so it is the stage's to delete.
        name, most = f"{id.serial}.in", self._services.inline_bytes
        if (whole := self._whole(wanted)) is not None:
            return await answered(lambda: joiner.stored(whole, blob=name, inline_bytes=most))
        return await answered(lambda: joiner.join(bind, self._values, blob=name, inline_bytes=most))

    async def _result(self) -> Payload:
        wanted, joiner = self._spec.result(), self._services.joiner
        bind = partial(bound_result, wanted)
        if (whole := self._whole(wanted)) is not None:
            return whole
        name = blob_name(Ending(self._job.id, self._job.token, JobState.SUCCEEDED))
        return await answered(lambda: joiner.join(bind, self._values, blob=name, inline_bytes=_HELD_BYTES))

    @property
    def _values(self) -> dict[str, Payload]:
        return {**self._progress.outputs, INPUT: self._job.input}

    def _whole(self, wanted: Wanted) -> Payload | None:
        """The value that is passed on as it is; None if one has to be cut out or put together."""
        value = self._values.get(wanted) if isinstance(wanted, str) else None
        return None if value is None or value.content_type == BUNDLE_MEDIA else value

    async def _submit(self, stage: PipelineStage, id: JobId, input: Payload) -> bool:
        """Store the stage's job; False if it was stored before. While the model's queue is full, this waits; if it is closed
        for the version, the next look finds another version, or none.
        """
        failures = BackoffCounter(AGAIN)
        while True:
            model = await answered(lambda: self._services.models.find(stage))
            job = self._stage_job(id, model.version, input)
            limits = model.limits
            job = replace(job, max_attempts=limits.max_attempts, max_crashes=limits.max_crashes)
            submitted = await answered(partial(self._store, job, limits.max_queue_depth))
            if submitted not in (SubmitStatus.FULL, SubmitStatus.RETIRED):
                return submitted is SubmitStatus.CREATED
            why = "full" if submitted is SubmitStatus.FULL else f"closed for version {model.version}"
            self._on_progress(self._progress.fraction, f"{stage.name}: waits, as the queue of {stage.model} is {why}")
            await asyncio.sleep(failures.count_failure(chance=random.random()))

    async def _store(self, job: NewJob, max_depth: int) -> SubmitStatus:
        """Submit a stage's job. Once sent, a submit is awaited: a cancel before its arrival would miss it."""
        sent = asyncio.ensure_future(self._services.store.submit(job, max_depth=max_depth))
        self._submits.add(sent)
        sent.add_done_callback(self._submits.discard)
        return (await asyncio.shield(sent)).status

    def _stage_job(self, id: JobId, version: str, input: Payload) -> NewJob:
        left_s = max(0.001, self._deadline - time.monotonic())
        return NewJob(
            id,
            version,
            input,
            priority=self._job.priority,
            deadline_s=left_s,
            result_ttl_s=left_s + _LATE_S + self._kept_s,
            owner=self._job.owner,
            reply_to=self._services.store.channel,
            trace=self._job.trace,
        )

    # Stages end.

    async def _next(self, waiter: Waiter) -> None:
        """Wait for the next end of a stage, or for another reason to look again."""
        if self._progress.is_over:
            return
        push = await waiter.next(_LOOK_S)
        if push is not None and push.state.final:
            self._on_end(self._stages[push.id], _pushed_end(push))
        elif push is None and not self._openings:
            await self._look_for_lost()

    def _on_end(self, stage: PipelineStage, end: StageEnd) -> None:
        failpoint("after_stage_end")
        self._progress.end(stage, end)
        self._on_progress(self._progress.fraction, self._progress.note)

    async def _look_for_lost(self) -> None:
        """Submit stages again whose records are gone, because their end would never be pushed. A store that failed over may
        have lost such a submit, although the pipeline was accepted.
        """
        for stage in self._progress.under_way:
            known = await self._look(stage_job(self._job.id, stage))
            if known is None:
                log.warning(STAGE_SUBMITTED_AGAIN, job_id=str(self._job.id), model=self._job.id.model, stage=stage.name)
                self._begin(stage)
            elif known.state.final:
                self._on_end(stage, known)

    async def _end(self) -> Driven:
        """The end of the pipeline; stages that are still under way are cancelled before."""
        await self._cancel(self._progress.under_way)
        if self._progress.failed is not None:
            return _failed(self._progress.failed)
        if not self._progress.is_complete:
            state, code = (JobState.EXPIRED, EXPIRED) if self._is_late else (JobState.FAILED, "cancelled")
            return Driven(state, code=code, message="the deadline passed before the last stage had ended")
        try:
            output = await self._result()
        except PenstockError as error:
            return Driven(JobState.FAILED, code=_code_of(error), message=f"the result cannot be put together: {error.message}")
        failpoint("before_stages_end")
        return Driven(JobState.SUCCEEDED, output, needless=needless_blobs(self._progress.outputs, output, self._job.input))

    async def _cancel(self, stages: Sequence[PipelineStage]) -> None:
        for opening in list(self._openings):
            opening.cancel()
        await asyncio.gather(*self._submits, return_exceptions=True)
        store, owner = self._services.store, self._job.owner
        ids = [stage_job(self._job.id, stage) for stage in stages]
        await asyncio.gather(*(answered(partial(store.cancel, id, owner=owner)) for id in ids))


def _pushed_end(push: Push) -> StageEnd:
    return StageEnd(push.state, push.output, push.error_code, push.error_message)


def _end_of(job: Job, output: Payload | None) -> StageEnd:
    error = job.error
    return StageEnd(job.state, output, error.code if error else "", error.message if error else "")


def _code_of(error: PenstockError) -> str:
    """A blob that is gone has no caller's code, because it is not the input's fault."""
    return INPUT_MISSING_CODE if isinstance(error, Gone) else error.kind


def _lost(id: JobId) -> StageEnd:
    return StageEnd(JobState.FAILED, code=STAGE_LOST, message=f"the record of its job {id} is gone from the store")


def _failed(failed: FailedStage) -> Driven:
    """The pipeline's end after a stage's: the error names the stage, and has its code."""
    stage, end = failed.stage, failed.end
    named = f"stage {stage.name!r} (model {stage.model})"
    if end.state is JobState.EXPIRED:
        return Driven(JobState.EXPIRED, code=EXPIRED, message=f"{named}: {end.message}")
    if end.state is JobState.CANCELLED:
        return Driven(JobState.FAILED, code=STAGE_CANCELLED, message=f"{named} was cancelled by itself")
    return Driven(JobState.FAILED, code=end.code or InternalError.kind, message=f"{named}: {end.message}")
