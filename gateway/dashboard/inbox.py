"""The failed inbox: jobs that brought no output and were not replayed, put together by what went wrong. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.job import Job, JobState

MESSAGE_CHARS = 200
# In this order: what looks like an id is one before its digits are numbers. Possessive, so that no message takes long.
_VARIABLE = (
    (re.compile(r"\b[0-9a-hjkmnp-tv-z]{26}-[A-Za-z0-9][A-Za-z0-9_.-]*+"), "JOB"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "ID"),
    (re.compile(r"\b0x[0-9a-fA-F]++|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{12,}+\b"), "ID"),
    (re.compile(r"'[^'\n]{40,400}+'|\"[^\"\n]{40,400}+\""), "'...'"),
    (re.compile(r"\d++(?:[.,]\d++)*+(?:[eE][+-]?\d++)?"), "N"),
    (re.compile(r"\s++"), " "),
)


@dataclass(frozen=True, slots=True)
class Group:
    """`id` names model, code and message together. `versions` are those that its jobs failed with."""

    id: str
    model: str
    code: str
    message: str
    count: int
    newest: Job
    oldest_at: float
    versions: tuple[str, ...]


def normalised(message: str) -> str:
    """The message without what differs between two cases of one fault: ids, long quotations, numbers."""
    text = message[: 4 * MESSAGE_CHARS]
    for pattern, instead in _VARIABLE:
        text = pattern.sub(instead, text)
    return text.strip()[:MESSAGE_CHARS]


def kind_of(job: Job) -> tuple[str, str, str]:
    """Model, code and message: two jobs with the same belong together."""
    code = job.error.code if job.error else "expired" if job.state is JobState.EXPIRED else "failed"
    return job.model, code, normalised(job.error.message if job.error else "")


def group_id(kind: tuple[str, str, str]) -> str:
    return hashlib.blake2b("\0".join(kind).encode("utf-8", "replace"), digest_size=8).hexdigest()


def grouped(jobs: Iterable[Job]) -> list[Group]:
    """Largest first. `jobs` are newest first."""
    found: dict[tuple[str, str, str], list[Job]] = {}
    for job in jobs:
        found.setdefault(kind_of(job), []).append(job)
    groups = [
        Group(
            id=group_id(kind),
            model=kind[0],
            code=kind[1],
            message=kind[2],
            count=len(members),
            newest=max(members, key=_ended_at),
            oldest_at=min(map(_ended_at, members)),
            versions=tuple(sorted({job.version for job in members})),
        )
        for kind, members in found.items()
    ]
    return sorted(groups, key=lambda group: (-group.count, group.model, group.code, group.message))


def _ended_at(job: Job) -> float:
    return job.finished_at or job.created_at
