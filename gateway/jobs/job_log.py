"""The gateway's log lines about single jobs: what it accepts and what it cancels. None of them is a problem."""

from __future__ import annotations

import structlog

from penstock import logs
from penstock.broker.contract import CancelStatus
from penstock.job_id import JobId
from penstock.logs import JobLines

log = structlog.get_logger(__name__)


class GatewayJobLog:
    def __init__(self, lines: JobLines) -> None:
        self._on = lines is JobLines.ALL

    def accepted(self, job: JobId, *, version: str, trace: str, depth: int) -> None:
        """`depth`: how many wait in the model's queue, this one included."""
        if self._on:
            log.info(logs.JOB_ACCEPTED, **logs.job_fields(job, version=version, trace=trace), depth=depth)

    def cancelled(self, job: JobId, outcome: CancelStatus, *, version: str, trace: str) -> None:
        """One that runs ends with its batch, and its worker says so."""
        if self._on and outcome is CancelStatus.CANCELLED:
            told = logs.job_fields(job, version=version, trace=trace)
            log.info(logs.JOB_FINISHED, **told, state=outcome.value)
        elif self._on and outcome is CancelStatus.REQUESTED:
            log.info(logs.JOB_CANCEL_ASKED, **logs.job_fields(job, version=version, trace=trace))
