"""The failed inbox (D35): jobs without an output that were not replayed, grouped by what went wrong. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from penstock.gateway.asgi.problems import is_of_input
from penstock.job import Job, JobState

MESSAGE_CHARS = 200
# Ids come before numbers, because ids have digits too. Possessive quantifiers keep the match linear for any message.
_VARIABLE = (
    (re.compile(r"\b[0-9a-hjkmnp-tv-z]{26}(?:\.[0-9]{1,9})?-[A-Za-z0-9][A-Za-z0-9_.-]*+"), "JOB"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "ID"),
    (re.compile(r"\b0x[0-9a-fA-F]++|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{12,}+\b"), "ID"),
    (re.compile(r"'[^'\n]{40,400}+'|\"[^\"\n]{40,400}+\""), "'...'"),
    (re.compile(r"\d++(?:[.,]\d++)*+(?:[eE][+-]?\d++)?"), "N"),
    (re.compile(r"\s++"), " "),
)


class FaultSide(StrEnum):
    """Who caused a failure: the caller, by an input that the model cannot take, or the model and its workers."""

    CALLER = "caller"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The jobs with one fault. `id` is a hash of model, code and message. `versions`: the versions that failed."""

    id: str
    model: str
    code: str
    message: str
    count: int
    newest: Job
    oldest_at: float
    versions: tuple[str, ...]

    @property
    def fault(self) -> FaultSide:
        return _fault_of_code(self.code)


def normalised(message: str) -> str:
    """The message without the parts that differ between two cases of one fault: ids, long quotations, numbers."""
    text = message[: 4 * MESSAGE_CHARS]
    for pattern, placeholder in _VARIABLE:
        text = pattern.sub(placeholder, text)
    return text.strip()[:MESSAGE_CHARS]


def kind_of(job: Job) -> tuple[str, str, str]:
    """Model, code and message. Jobs with equal kinds belong to one group."""
    code = job.error.code if job.error else "expired" if job.state is JobState.EXPIRED else "failed"
    return job.model, code, normalised(job.error.message if job.error else "")


def fault_of(job: Job) -> FaultSide:
    return _fault_of_code(kind_of(job)[1])


def _fault_of_code(code: str) -> FaultSide:
    return FaultSide.CALLER if is_of_input(code) else FaultSide.MODEL


def group_id(kind: tuple[str, str, str]) -> str:
    return hashlib.blake2b("\0".join(kind).encode("utf-8", "replace"), digest_size=8).hexdigest()


def grouped(jobs: Iterable[Job]) -> list[FailureGroup]:
    """The groups, largest first. `jobs` are newest first."""
    members_of: dict[tuple[str, str, str], list[Job]] = {}
    for job in jobs:
        members_of.setdefault(kind_of(job), []).append(job)
    groups = [
        FailureGroup(
            id=group_id(kind),
            model=kind[0],
            code=kind[1],
            message=kind[2],
            count=len(members),
            newest=max(members, key=_ended_at),
            oldest_at=min(map(_ended_at, members)),
            versions=tuple(sorted({job.version for job in members})),
        )
        for kind, members in members_of.items()
    ]
    return sorted(groups, key=lambda group: (-group.count, group.model, group.code, group.message))


def _ended_at(job: Job) -> float:
    return job.finished_at or job.created_at
