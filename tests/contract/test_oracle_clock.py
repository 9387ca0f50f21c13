"""Rules that take hours or days to show, tested on the oracle, whose clock a test moves by hand."""

from __future__ import annotations

from penstock.broker.records import SubmitStatus
from penstock.job import JobState
from tests.contract.dumps import dump_oracle
from tests.contract.model_queue import ModelQueue
from tests.oracle.store import StoreOracle

HOUR_S = 3_600.0


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def queue_with_clock() -> tuple[ModelQueue, Clock]:
    clock = Clock()
    store = StoreOracle(clock)
    return ModelQueue(store, "square", lambda: dump_oracle(store, "square")), clock


def test_a_lease_ends_when_its_time_is_over_and_not_before() -> None:
    queue, clock = queue_with_clock()
    job = queue.leased(lease_s=15.0)
    clock.now += 14.9
    assert queue.store.sweep("square").requeued == 0
    clock.now += 0.1
    assert queue.store.sweep("square").requeued == 1
    assert queue.state(job.id) is JobState.QUEUED


def test_a_job_expires_at_its_deadline() -> None:
    queue, clock = queue_with_clock()
    job = queue.submit(deadline_s=HOUR_S)
    clock.now += HOUR_S - 1
    assert queue.store.sweep("square").expired == 0
    clock.now += 1
    assert queue.store.sweep("square").expired == 1
    assert queue.state(job) is JobState.EXPIRED


def test_a_result_is_kept_a_day_and_its_tombstone_another() -> None:
    queue, clock = queue_with_clock()
    job = queue.leased()
    queue.finish(job)
    clock.now += 24 * HOUR_S - 1
    assert queue.store.sweep("square").collected == 0
    clock.now += 1
    assert queue.store.sweep("square").collected == 1
    clock.now += 24 * HOUR_S - 1
    assert queue.store.collected_owner(job.id) == ""
    clock.now += 1
    assert queue.store.collected_owner(job.id) is None


def test_a_result_kept_for_a_minute_leaves_a_tombstone_for_a_minute() -> None:
    # The tombstone once stood for a day, however long the result was kept: 90,000 answer-now requests left 86,000 tombstones of
    # 72 bytes each.
    queue, clock = queue_with_clock()
    job = queue.leased(result_ttl_s=60.0)
    queue.finish(job)
    clock.now += 60
    assert queue.store.sweep("square").collected == 1
    clock.now += 59
    assert queue.store.collected_owner(job.id) == ""
    clock.now += 1
    assert queue.store.collected_owner(job.id) is None


def test_a_key_is_remembered_for_two_days() -> None:
    queue, clock = queue_with_clock()
    queue.submit(idempotency_key="k", fingerprint="f")
    clock.now += 48 * HOUR_S - 1
    assert queue.put(queue.new(idempotency_key="k", fingerprint="g")).status is SubmitStatus.KEY_REUSED
    clock.now += 1
    assert queue.put(queue.new(idempotency_key="k", fingerprint="g")).status is SubmitStatus.CREATED


def test_a_key_is_remembered_for_as_long_as_the_job_may_wait_and_its_result_is_kept() -> None:
    queue, clock = queue_with_clock()
    first = queue.submit(idempotency_key="k", fingerprint="f", deadline_s=72 * HOUR_S, result_ttl_s=24 * HOUR_S)
    clock.now += 96 * HOUR_S
    assert queue.put(queue.new(idempotency_key="k", fingerprint="f")).id == first


def test_a_batch_waits_exactly_as_long_as_it_may() -> None:
    queue, clock = queue_with_clock()
    queue.leased("w1")
    queue.submit()
    clock.now += 0.004
    assert queue.claim("w2", enough=8, max_wait_s=0.005).retry_in_s is not None
    clock.now += 0.001
    assert queue.claim("w2", enough=8, max_wait_s=0.005).reason == "wait"
