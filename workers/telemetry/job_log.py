"""A worker's log lines about single jobs: one per change of a job's state, as far as `log.jobs` asks for them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import structlog

from penstock import logs
from penstock.broker.contract import ReleaseReason
from penstock.broker.records import Change, ClaimedJob, Ending, Settled
from penstock.job import JobState
from penstock.logs import JobLines
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batch import Batch, Release, Retry
from penstock.workers.slot.context import Observer

log = structlog.get_logger(__name__)
_TRACEBACKS_PER_S = 5
_ENDED_BY_RETURN = {Settled.DEAD: JobState.FAILED.public, Settled.CANCELLED: JobState.CANCELLED.public}


class WorkerJobLog(Observer):
    """Writes the lines as the slots report, with the seconds that a job waited, ran in each stage, and took in all."""

    def __init__(self, lines: JobLines) -> None:
        self._all = lines is JobLines.ALL
        self._on = lines is not JobLines.OFF
        # How many tracebacks of each model were written in which second.
        self._traced: dict[str, tuple[int, int]] = {}

    @property
    def wants_every_batch(self) -> bool:
        return self._all

    def on_claimed(self, spec: ModelSpec, batch: Batch) -> None:
        if not self._all:
            return
        for job in batch.jobs:
            fields = logs.job_fields(job.id, version=spec.version, batch=batch.nonce, trace=job.trace)
            waited_s = round(max(0.0, batch.leased_at - job.created_at), 3)
            log.info(logs.JOB_CLAIMED, **fields, attempt=job.attempts, size=batch.size, reason=batch.reason, age_s=waited_s)

    def on_settled(self, spec: ModelSpec, batch: Batch, answers: Sequence[Settled], store_s: float) -> None:
        if not self._on or (not self._all and all(ending.state is JobState.SUCCEEDED for ending in batch.endings)):
            return
        ended_at = time.monotonic()
        for ending, job, answer in zip(batch.endings, batch.jobs, answers, strict=False):
            if answer is not Settled.STALE:
                self._log_finished(spec, batch, ending, job, answer, ended_at=ended_at)

    def _log_finished(
        self, spec: ModelSpec, batch: Batch, ending: Ending, job: ClaimedJob, answer: Settled, *, ended_at: float
    ) -> None:
        state = _ENDED_BY_RETURN.get(answer, ending.state.public)
        if not self._all and state in logs.WANTED_ENDS:
            return
        fields = logs.job_fields(ending.id, version=spec.version, batch=batch.stamp.id, trace=job.trace)
        run_s = {name: round(getattr(batch.stamp, name), 6) for name in ("preprocess_s", "inference_s", "postprocess_s")}
        error = {"code": ending.error_code} if ending.error_code else {}
        line = {**fields, "state": state, **error, "total_s": round(max(0.0, ended_at - batch.accepted_at(job)), 3), **run_s}
        write = log.info if state in logs.WANTED_ENDS else log.warning
        write(logs.JOB_FINISHED, **line, **self._exception(spec.name, ending.traceback))

    def _exception(self, model: str, traceback: str) -> dict[str, str]:
        """The traceback, where the model keeps them. Those beyond a few per second are to be read job by job."""
        if not traceback:
            return {}
        second = int(time.monotonic())
        before, count = self._traced.get(model, (second, 0))
        self._traced[model] = (second, count + 1 if before == second else 1)
        if before == second and count >= _TRACEBACKS_PER_S:
            return {}
        # structlog's name for it: at a terminal it follows the line as it is.
        return {"exception": traceback.rstrip()}

    def on_given_back(self, spec: ModelSpec, debt: Retry | Release, answers: Sequence[Settled]) -> None:
        if not self._on:
            return
        items = [debt.item] if isinstance(debt, Retry) else debt.items
        event, why = _returned(debt)
        for item, answer in zip(items, answers, strict=True):
            if answer is Settled.STALE or (answer is Settled.OK and why.get("cause") == ReleaseReason.READING.value):
                continue
            fields = logs.job_fields(item.id, version=spec.version, batch=item.token.rpartition(":")[2], trace=item.trace)
            # After its last attempt a job is not retried: the answer then says that it has ended.
            if answer is Settled.OK or event == logs.JOB_LOST:
                raised = self._exception(spec.name, debt.traceback) if isinstance(debt, Retry) else {}
                log.warning(event, **fields, **why, **raised)
            if answer in _ENDED_BY_RETURN:
                log.warning(logs.JOB_FINISHED, **fields, state=_ENDED_BY_RETURN[answer])

    # D28: jobs that no worker settled.
    def on_changed(self, changes: Sequence[Change]) -> None:
        if not self._on:
            return
        for change in changes:
            fields = logs.job_fields(change.id, version=change.version, batch=change.batch, trace=change.trace)
            if change.event == "lost":
                log.warning(logs.JOB_LOST, **fields, cause="worker_lost", worker=change.worker)
            elif self._all or change.state.public not in logs.WANTED_ENDS:
                log.warning(logs.JOB_FINISHED, **fields, state=change.state.public)


def _returned(debt: Retry | Release) -> tuple[str, dict[str, object]]:
    if isinstance(debt, Retry):
        return logs.JOB_RETRIED, {"code": debt.code, "delay_s": round(debt.delay_s, 3)}
    if debt.reason is ReleaseReason.CRASHED:
        return logs.JOB_LOST, {"cause": debt.reason.value, "how": debt.detail}
    return logs.JOB_RELEASED, {"cause": debt.reason.value}
