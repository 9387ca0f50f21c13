"""One log event per change of a job's state: their names, their fields, and which of them a log is to have. Pure."""

from __future__ import annotations

from enum import StrEnum

from penstock.job_id import JobId
from penstock.trace_context import trace_id_of

JOB_ACCEPTED = "job_accepted"
JOB_CLAIMED = "job_claimed"
JOB_RETRIED = "job_retried"  # put aside after a failure that may pass
JOB_RELEASED = "job_released"  # given back unharmed: drain, a child that ended with others' jobs
JOB_LOST = "job_lost"  # its worker or the process that ran it is gone
JOB_CANCEL_ASKED = "job_cancel_asked"  # it runs: it ends with its batch
JOB_FINISHED = "job_finished"


class JobLines(StrEnum):
    """Which changes are logged: each one, those that no job should need (`problems`), or none."""

    ALL = "all"
    PROBLEMS = "problems"
    OFF = "off"


# Ends that somebody wanted: no news for who looks for trouble.
WANTED_ENDS = frozenset({"succeeded", "cancelled"})


def fields(job: JobId, *, version: str, batch: str = "", trace: str = "") -> dict[str, str]:
    """What every such line has; empty where there is none, so that each line has the same columns."""
    return {"job_id": str(job), "model": job.model, "version": version, "batch_id": batch, "trace_id": trace_id_of(trace)}
