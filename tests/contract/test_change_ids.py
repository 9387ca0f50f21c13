"""The id of a job's state only grows, whatever happens to the job: a stream that goes back would tell its client of a reset."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from penstock.gateway.jobs.events.told import lost_history
from penstock.gateway.jobs.views import change_id
from penstock.job import Job, JobId
from tests.contract.model_queue import ModelQueue

Move = Callable[[ModelQueue], object]


def claim(queue: ModelQueue) -> None:
    """Claim the one job; a suspect too."""
    assert queue.claim("w1", lease_s=60.0).jobs


def lose(queue: ModelQueue) -> None:
    claim(queue)
    queue.store.sweep(queue.name, gone=["w1"])


def release(queue: ModelQueue) -> None:
    queue.release(queue.take())


def retry(queue: ModelQueue) -> None:
    queue.retry(queue.take())


def promote(queue: ModelQueue) -> None:
    queue.store.sweep(queue.name)


def crash(queue: ModelQueue) -> None:
    queue.crash(queue.take())


def finish(queue: ModelQueue) -> None:
    queue.finish(queue.take())


@pytest.mark.parametrize(
    "moves",
    [
        [claim, lambda queue: queue.store.sweep(queue.name, gone=["w1"]), finish],
        [lose, lose, lose, finish],
        [release, release, finish],
        [retry, promote, retry, promote, finish],
        [crash, lose, release, finish],
        [lose, release, retry, promote, crash, *[lose] * 7, finish],
    ],
    ids=["lost", "lost again and again", "released", "retried", "crashed", "all of them"],
)
def test_change_ids_only_grow(queue: ModelQueue, moves: list[Move]) -> None:
    job: JobId = queue.submit(max_attempts=20)
    seen: list[Job] = [queue.read(job)]
    for move in moves:
        move(queue)
        seen.append(queue.read(job))
    for before, after in pairwise(seen):
        assert change_id(before) != change_id(after)
        assert not lost_history(change_id(before), after)
        assert lost_history(change_id(after), before)
    assert seen[-1].state.final
