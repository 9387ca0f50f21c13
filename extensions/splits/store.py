"""What the store counts of a split: how the jobs of each version ended, and how the copies for a shadow compare. Pure.

The ends are counted in the call that ends the job (`split.lua`), so no gateway has to live for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from penstock.broker.store.ops import Command, Operation, digest, prefix
from penstock.broker.store.positions import Arg
from penstock.job import JobId, job_in

# The name of the word that a job's submit has for these functions: the name of the figures in which its end is counted.
WORD = "splits"
# Characters of a job's serial.
_SERIAL = 26


def split_counts(queue: str, name: str) -> Command[Mapping[str, int]]:
    """The counts under this name, by field. They are gone a week after the last count."""
    return Command(("HGETALL", f"{prefix(queue)}split:{name}"), _counts)


def count_split(queue: str, name: str, counts: Mapping[str, int]) -> Operation[None]:
    """Add to counts that no end of a job adds to."""
    args: list[Arg] = [name]
    for field, count in counts.items():
        args += (field, count)
    return Operation("count_split", prefix(queue), args, _nothing)


def first_job(queue: str, owner: str, key: str) -> Command[JobId | None]:
    """The job that an earlier request of this owner made with the same idempotency key; None if there is none."""
    return Command(("GET", f"{prefix(queue)}idem:{digest(owner, key)}"), partial(_job, queue=queue))


def _job(reply: bytes | None, *, queue: str) -> JobId | None:
    # Behind the serial stands the fingerprint of the request.
    return None if reply is None else job_in(reply[:_SERIAL].decode(), queue)


def _counts(reply: Mapping[bytes, bytes]) -> Mapping[str, int]:
    return {field.decode(): int(count) for field, count in reply.items()}


def _nothing(_: Any) -> None:
    """Nobody needs the reply."""
