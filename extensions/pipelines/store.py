"""What an executor asks of the store beside what every worker asks (`functions/undriven.lua`), and for how long it asks."""

# D147: docs/design/pipelines.md
from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.store.ops import Operation, prefix
from penstock.errors import StoreUnavailable
from penstock.job import JobId

Reply = TypeVar("Reply")
AGAIN = Backoff(0.05, 2.0, jitter=0.5)
# Jobs per call, and so the longest that one call holds up the store.
_PAGE = 256


def begin_drive(job: JobId) -> Operation[float]:
    """Note that the job has stages from now on. Returns for how many seconds its result is kept; 0 if the job is unknown."""
    return Operation("begin_drive", prefix(job.queue), [job.serial], lambda kept: int(kept or 0) / 1000)


def undriven(queue: str, *, done: Sequence[bytes] = ()) -> Operation[list[bytes]]:
    """Entries of jobs whose stages are to be cancelled, a page at most. Those in `done` leave the list before."""
    return Operation("undriven", prefix(queue), [_PAGE, *done], list)


def read_undriven(entry: bytes) -> tuple[str, str]:
    """The job's serial and its owner."""
    serial, _, owner = entry.decode().partition(",")
    return serial, owner


async def answered(call: Callable[[], Awaitable[Reply]]) -> Reply:
    """The answer of the store or the blobs, repeated for as long as they are away. The caller may be cancelled meanwhile."""
    failures = BackoffCounter(AGAIN)
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(failures.count_failure(chance=random.random()))
