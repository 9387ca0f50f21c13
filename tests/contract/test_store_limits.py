"""No call moves more jobs than its limit, however many are due; what is left is done by the next calls."""

from __future__ import annotations

from penstock.job import JobState
from tests.contract.model_queue import ModelQueue


def sweep_on(queue: ModelQueue, *, limit: int) -> list[int]:
    """Sweep until nothing is due; return how many jobs each call expired."""
    expired, more = [], True
    while more:
        report = queue.store.sweep(queue.name, limit=limit)
        expired.append(report.expired)
        more = report.more
    return expired


def test_a_sweep_expires_at_most_its_limit_over_all_lines(queue: ModelQueue) -> None:
    for owner in ("", "a", "b"):
        for _ in range(4):
            queue.submit(owner=owner, deadline_s=0.0)
    assert sweep_on(queue, limit=5) == [5, 5, 2]
    assert queue.store.stats(queue.name).ended == {"expired": 12}


def test_all_steps_of_a_sweep_share_one_limit(queue: ModelQueue) -> None:
    done = [queue.leased("w1", result_ttl_s=0.0) for _ in range(2)]
    for job in done:
        queue.finish(job)
    queue.retry(queue.leased("w1"))
    queue.leased("w2", lease_s=0.0)
    queue.submit(deadline_s=0.0)
    first, second = (queue.store.sweep(queue.name, limit=3) for _ in range(2))
    assert (first.requeued, first.promoted, first.expired, first.collected, first.more) == (1, 1, 1, 0, True)
    assert (second.collected, second.more) == (2, False)


def test_a_worker_that_holds_more_than_the_limit_is_taken_back_in_parts(queue: ModelQueue) -> None:
    jobs = [queue.submit() for _ in range(5)]
    queue.claim("w1", lease_s=0.0)
    first = queue.store.sweep(queue.name, limit=3)
    assert (first.requeued, first.workers_lost, first.more) == (3, (), True)
    second = queue.store.sweep(queue.name, limit=3)
    assert (second.requeued, second.workers_lost, second.more) == (2, ("w1",), False)
    assert {queue.state(job) for job in jobs} == {JobState.QUEUED}
