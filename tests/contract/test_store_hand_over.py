"""A submit hands its jobs to a slot that waits: the slot's offer, who gets the jobs, and what holds when nobody hears.

The oracle hands nothing over, because nobody listens to it; there the same acts leave the jobs in line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.broker.records import HandedOver, Settled
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import handed_over
from penstock.job import JobState, Payload, Priority
from tests.contract.model_queue import ModelQueue
from tests.eventually import eventually


class Listener:
    """The subscription of a slot to its own channel."""

    def __init__(self, queue: ModelQueue, worker: str) -> None:
        assert isinstance(queue.store, RedisStore)
        self._client, self._model, self._channel = queue.store._redis, queue.name, f"ps:{{{queue.name}}}:worker:{worker}"
        self._pubsub = self._client.pubsub()
        self._pubsub.ssubscribe(self._channel)
        self._pubsub.get_message(timeout=5.0)  # this first message says that the subscription is in place

    def heard(self) -> list[HandedOver]:
        """All that was published until now."""
        self._client.execute_command("SPUBLISH", self._channel, "end")
        texts = iter(lambda: eventually(lambda: self._pubsub.get_message(timeout=1.0))["data"], b"end")
        return [HandedOver(*handed_over(text[1:], self._model)) for text in texts]

    def handed(self) -> HandedOver:
        """The one message that was published until now."""
        [message] = self.heard()
        return message

    def close(self) -> None:
        self._pubsub.close()


@pytest.fixture
def slot(queue: ModelQueue) -> Iterator[Listener]:
    """The subscription of slot w1. Skipped for the oracle."""
    if not isinstance(queue.store, RedisStore):
        pytest.skip("nobody listens to the oracle")
    with closing(Listener(queue, "w1")) as listener:
        yield listener


def test_a_job_that_meets_a_waiting_slot_is_leased_by_its_submit(queue: ModelQueue, slot: Listener) -> None:
    assert queue.claim("w1", offer=True).jobs == ()
    id = queue.submit(input=Payload("application/octet-stream", b"\x00\nh 7\xff"), trace="00-a-b-01")
    message = slot.handed()
    [job] = message.claim.jobs
    assert (job.id, job.input, job.trace, job.attempts) == (
        id,
        Payload("application/octet-stream", b"\x00\nh 7\xff"),
        "00-a-b-01",
        1,
    )
    assert (message.claim.reason, message.claim.depth, message.nonce) == ("idle", 0, "nonce0")
    assert job.token == "1:w1:nonce0"
    assert abs(message.claim.now - job.created_at) < 60.0
    assert queue.place(id) == "held:w1"
    assert queue.finish(job) is Settled.OK


def test_all_jobs_of_a_submit_go_up_to_the_limit_and_the_rest_waits(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", limit=3, offer=True)
    late, *soon = [queue.new(deadline_s=50.0 if n else 500.0) for n in range(4)]
    queue.store.submit([late, *soon])
    message = slot.handed()
    assert [job.id for job in message.claim.jobs] == [job.id for job in soon]
    assert (message.claim.reason, message.claim.depth) == ("full", 1)
    assert queue.place(late.id) == "ready"


def test_an_offer_is_used_once(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", offer=True)
    first, second = queue.submit(), queue.submit()
    assert [job.id for job in slot.handed().claim.jobs] == [first]
    assert queue.place(second) == "ready"
    assert slot.heard() == []


def test_a_slot_that_asks_again_keeps_its_offer_and_one_that_asks_without_ends_it(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", offer=True)
    queue.claim("w1", offer=True)
    queue.submit()
    assert slot.handed().nonce == "nonce0"
    assert queue.claim("w1", offer=True).jobs == ()
    assert queue.claim("w1").jobs == ()
    waiting = queue.submit()
    assert queue.place(waiting) == "ready"


def test_a_changed_offer_replaces_the_one_before(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", limit=1, offer=True)
    queue.claim("w1", limit=2, offer=True)
    jobs = [queue.new() for _ in range(3)]
    queue.store.submit(jobs)
    assert len(slot.handed().claim.jobs) == 2


def test_a_claim_that_brings_jobs_ends_the_offer(queue: ModelQueue, slot: Listener) -> None:
    returned = queue.leased("w2")
    queue.claim("w1", offer=True)
    queue.release(returned, worker="w2")
    assert [job.id for job in queue.claim("w1", offer=True).jobs] == [returned.id]
    assert queue.place(queue.submit()) == "ready"
    assert slot.heard() == []


def test_shards_and_jobs_of_another_version_leave_the_offer_alone(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", offer=True)
    shard, other = queue.shard(), queue.submit(version="2")
    assert (queue.place(shard), queue.place(other)) == ("shards", "ready")
    id = queue.submit()
    assert [job.id for job in slot.handed().claim.jobs] == [id]


def test_a_withdrawn_offer_is_not_used(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", offer=True)
    assert queue.store.withdraw(queue.name, "1", "w1")
    assert queue.place(queue.submit()) == "ready"
    assert not queue.store.withdraw(queue.name, "1", "w1")


def test_a_slot_that_does_not_listen_gets_nothing_and_the_job_is_as_new(queue: ModelQueue) -> None:
    queue.claim("gone", offer=True)
    id = queue.submit()
    assert (queue.place(id), queue.read(id).attempts) == ("ready", 0)
    assert [job.id for job in queue.claim("w2").jobs] == [id]


def test_of_jobs_that_must_wait_for_more_the_slot_hears_when_to_ask_again(queue: ModelQueue, slot: Listener) -> None:
    queue.leased("w2")
    assert queue.claim("w1", enough=4, max_wait_s=1_000.0, offer=True).jobs == ()
    waiting = queue.submit()
    claim = slot.handed().claim
    assert (claim.jobs, claim.depth) == ((), 1)
    assert claim.retry_in_s is not None
    assert queue.place(waiting) == "ready"
    queue.submit()
    assert slot.heard() == []


def test_a_job_that_ends_in_the_hand_over_is_reported_to_the_slot_whose_offer_stands(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", offer=True)
    late = queue.submit(deadline_s=0.0)
    [change] = slot.handed().claim.changes
    assert (change.id, change.state) == (late, JobState.EXPIRED)
    id = queue.submit()
    assert [job.id for job in slot.handed().claim.jobs] == [id]


def test_bulk_jobs_and_those_of_an_owner_are_handed_over_too(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", offer=True)
    queue.store.submit([queue.new(priority=Priority.BULK), queue.new(owner="a"), queue.new(owner="b")])
    assert [job.priority for job in slot.handed().claim.jobs] == [Priority.INTERACTIVE] * 2 + [Priority.BULK]


def test_a_handed_job_is_taken_back_with_the_lease_of_its_slot(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", offer=True)
    id = queue.submit()
    slot.handed()
    queue.store.sweep(queue.name, gone=["w1"])
    assert (queue.state(id), queue.read(id).attempts) == (JobState.QUEUED, 1)


def test_the_slot_gets_what_is_first_in_line_not_what_came_last(queue: ModelQueue, slot: Listener) -> None:
    returned = queue.leased("w2", deadline_s=5.0)
    queue.claim("w1", limit=1, offer=True)
    queue.release(returned, worker="w2")
    behind = queue.submit(deadline_s=500.0)
    assert [job.id for job in slot.handed().claim.jobs] == [returned.id]
    assert queue.place(behind) == "ready"


def test_a_repeated_submit_hands_nothing_over_twice(queue: ModelQueue, slot: Listener) -> None:
    queue.claim("w1", offer=True)
    job = queue.new()
    queue.put(job)
    slot.handed()
    queue.claim("w1", offer=True)
    queue.put(job)
    assert slot.heard() == []
    assert queue.place(job.id) == "held:w1"
