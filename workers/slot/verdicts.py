"""What a slot owes the store for the batches that ran, and for those that did not come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import structlog

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import BatchStamp, ClaimedJob
from penstock.errors import InternalError
from penstock.model_spec import ModelSpec
from penstock.workers.ipc.frames import BatchDone
from penstock.workers.slot.batcher import Batch
from penstock.workers.slot.child_events import BatchLost, Cause
from penstock.workers.slot.context import Observer
from penstock.workers.slot.outcomes import accepted, decide, failure, give_back, stopped_stamp
from penstock.workers.slot.settlement import Finish, Release, Settlements, TryAgain

log = structlog.get_logger(__name__)
BATCH_LOST = "batch_lost"
SLOT_FAULT = "slot_fault"
MISCOUNTED = "answered with a wrong number of outcomes"


class Verdicts:
    """Each becomes a debt of the `exchange`, and is told to the observers by `tell`."""

    def __init__(self, spec: ModelSpec, exchange: Settlements, tell: Callable[[Callable[[Observer], None]], None]) -> None:
        self._spec = spec
        self._exchange = exchange
        self._tell = tell

    def ran(self, held: Batch, done: BatchDone) -> None:
        try:
            verdict = decide(held, done)
        except InternalError:
            log.exception(SLOT_FAULT, model=self._spec.name)
            self.give_back(held.jobs, held.worker, ReleaseReason.CRASHED, MISCOUNTED)
            return
        if verdict.endings:
            self._exchange.owe(Finish(verdict.endings, held.worker, verdict.stamp, verdict.inputs, verdict.accepted))
        for retry in verdict.retries:
            self._exchange.owe(TryAgain(retry, held.worker))
        self._tell(lambda observer: observer.ran(self._spec, held, done))

    def lost(self, lost: BatchLost) -> None:
        held = lost.held
        log.warning(BATCH_LOST, model=self._spec.name, batch=held.nonce, items=held.size, cause=lost.cause.value, how=lost.how)
        if lost.cause is Cause.TIMED_OUT:
            message = f"ran longer than the model's max_run_s of {self._spec.limits.max_run_s:g} s and was stopped"
            self.fail(held, held.jobs, "timeout", message, stopped_stamp(held, time.monotonic()))
        else:
            self.give_back(held.jobs, held.worker, ReleaseReason(lost.cause.value), lost.how)
        self._tell(lambda observer: observer.lost(self._spec, lost.cause, held))

    def fail(self, held: Batch, jobs: Sequence[ClaimedJob], code: str, message: str, stamp: BatchStamp) -> None:
        endings = tuple(failure(job, code, message) for job in jobs)
        self._exchange.owe(Finish(endings, held.worker, stamp, accepted=accepted(held, jobs)))

    def give_back(self, jobs: Sequence[ClaimedJob], worker: str, reason: ReleaseReason, detail: str = "") -> None:
        self._exchange.owe(Release(tuple(give_back(jobs)), worker, reason, detail))
