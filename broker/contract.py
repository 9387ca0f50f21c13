"""The enums of the store's calls: why a job goes back, which list is read, the outcome of a cancel, an update or a take.

The calls are described in `broker/store/ops.py`, those of runs in `broker/store/runs.py`. Each is one atomic, durable step, and
raises `StoreUnavailable` when Redis is away. After a lost reply every call but `claim` may be repeated: a repeated claim would
take a second batch.
"""

from __future__ import annotations

from enum import StrEnum


class ReleaseReason(StrEnum):
    """Why a leased job goes back unfinished. Only `CRASHED` is charged: attempt kept, crash + 1, next run alone."""

    DRAIN = "drain"
    UNSTARTED = "unstarted"
    READING = "reading"  # the files at the URLs of its input have not arrived: it comes again after a short delay
    CRASHED = "crashed"


class JobIndex(StrEnum):
    """The lists of jobs that are kept, of all owners and of each."""

    ALL = "index"
    INBOX = "inbox"  # failed, dead or expired, and not yet replayed or dismissed
    TAGGED = "tagged"  # of each tag


class CancelStatus(StrEnum):
    CANCELLED = "cancelled"  # the job was waiting: it ended at once
    REQUESTED = "requested"  # the job runs: it is flagged, and its output will be dropped
    FINAL = "final"  # the job had ended before
    MISSING = "missing"  # the job never existed, was collected, or belongs to another owner


class TakeStatus(StrEnum):
    TAKEN = "taken"
    HELD = "held"  # another driver has the run until `driver_until`
    FINAL = "final"
    MISSING = "missing"


class UpdateStatus(StrEnum):
    """The store's answer to a driver's update."""

    OK = "ok"
    CANCEL = "cancel"  # the change was written, and a cancel of the run was requested
    LEAVE = "leave"  # the change was written, and the run of this part has ended: the part is left as it is
    LOST = "lost"  # another driver has the run: nothing was written
    FINAL = "final"  # the run has ended, perhaps by this very call before its reply was lost: nothing was written
    MISSING = "missing"


class DropStatus(StrEnum):
    DROPPED = "dropped"
    LIVE = "live"  # the run has not ended: nothing was done
    MISSING = "missing"


class ReopenStatus(StrEnum):
    REOPENED = "reopened"
    LIVE = "live"  # the run has not ended: nothing was done
    COMPLETED = "completed"  # the run has nothing left to do
    MISSING = "missing"
