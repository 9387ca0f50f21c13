"""A store function that fails half-way leaves no job half moved: each of its Redis commands fails once, in every function.

Redis rolls nothing back. What the call had decided is sent nevertheless, and `sweep` and `reconcile` mend the rest (D59).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count

import pytest
import redis

from penstock.broker.records import Ending
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.contract import EventState, TakeLimits
from penstock.job import JobId, JobState
from tests.contract.dumps import RedisDump
from tests.contract.hooked import Deliverer
from tests.contract.invariants import check_invariants, check_jobs
from tests.contract.model_queue import OUTPUT, ModelQueue
from tests.integration.failing_library import FailingLibrary
from tests.integration.store_scenarios import LARGE, SCENARIOS, Act

# Every dump reads past the keys of other modules.
pytestmark = pytest.mark.usefixtures("redis_url")

ENDS_OF_EVENTS = (EventState.DELIVERED, EventState.DISMISSED, EventState.UNASKED)
WORKERS = ["w1", "w2", "w3", "mender"]
Views = dict[str, object]


@pytest.fixture
def failing(redis_url: str) -> Iterator[FailingLibrary]:
    with closing(FailingLibrary(redis_url)) as library:
        yield library


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def fresh_queue(failing: FailingLibrary, client: redis.Redis) -> ModelQueue:
    model = f"m{uuid.uuid4().hex[:12]}"
    return ModelQueue(failing.store, model, RedisDump(client, model).dump)


def final_views(store: RedisStore, queue: ModelQueue) -> Views:
    """What a reader sees of each job that has ended. A success always has its output."""
    jobs = list(queue.dump().jobs)
    found = dict(zip(jobs, store.results([JobId(serial, queue.name) for serial in jobs]), strict=True))
    ended = {serial: view for serial, view in found.items() if view is not None and view[0].state.final}
    outputs = [view[1] for view in ended.values() if view[0].state is JobState.SUCCEEDED]
    assert all(output in (OUTPUT, LARGE) for output in outputs), "a success without its output"
    return dict(ended)


def act_and_fail(failing: FailingLibrary, act: Act, fail_at: int, *, for_good: bool) -> bool:
    """Whether the call failed."""
    with failing.failing(fail_at, for_good=for_good):
        try:
            act()
        except redis.ResponseError as error:
            if "injected" not in str(error):
                raise
            return True
    return False


def mend(queue: ModelQueue) -> None:
    """One sweep that takes back what the workers of the test hold, and one reconcile."""
    queue.store.sweep(queue.name, gone=WORKERS)
    queue.store.reconcile(queue.name)


def run_to_the_end(queue: ModelQueue) -> None:
    """Every job that was kept can still be run."""
    for _ in range(40):
        queue.store.sweep(queue.name)
        jobs = [*queue.claim("mender").jobs, *queue.claim("mender", shard=True).jobs]
        if jobs:
            queue.finish_all([Ending(job.id, job.token, JobState.SUCCEEDED, output=OUTPUT) for job in jobs], worker="mender")
        if all(job.state.final for job in queue.dump().jobs.values()):
            return
    raise AssertionError(f"never ran: {queue.dump().jobs}")


def deliver_to_the_end(queue: ModelQueue) -> None:
    """Every event that was due can still be delivered; those that were given up, by hand."""
    deliverer = Deliverer(queue)
    deliverer.open_endpoints({event.endpoint for event in queue.dump().events.values()})
    for _ in range(20):
        for event in deliverer.take(lease_s=0.0):
            deliverer.settle(event)
        deliverer.outbox.send_again(deliverer.outbox.undelivered())
        if deliverer.outbox.take(TakeLimits(lease_s=0.0)).next_in_s is None:
            break
    left = {serial: event for serial, event in queue.dump().events.items() if event.state not in ENDS_OF_EVENTS}
    assert not left, f"never delivered: {left}"


def fail_everywhere(
    failing: FailingLibrary, client: redis.Redis, scenario: Callable[[ModelQueue], Act], *, for_good: bool
) -> Iterator[tuple[ModelQueue, Act]]:
    """The queue after a failure at each command in turn, and the call that failed. Views of ends never change."""
    for fail_at in count(1):
        queue = fresh_queue(failing, client)
        act = scenario(queue)
        before = final_views(failing.store, queue)
        if not act_and_fail(failing, act, fail_at, for_good=for_good):
            return
        seen = final_views(failing.store, queue)
        mend(queue)
        kept = {**before, **seen}
        now = final_views(failing.store, queue)
        assert {serial: view for serial, view in kept.items() if serial in now} == {
            serial: view for serial, view in now.items() if serial in kept
        }, f"an end was retracted after a failure at command {fail_at}"
        yield queue, act
        client.delete(*client.scan_iter(f"*{{{queue.name}}}*", count=1000))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_call_that_fails_at_any_command_is_whole_after_one_sweep_and_reconcile(
    failing: FailingLibrary, client: redis.Redis, scenario: Callable[[ModelQueue], Act]
) -> None:
    for queue, _ in fail_everywhere(failing, client, scenario, for_good=False):
        check_invariants(queue.dump())
        run_to_the_end(queue)
        check_invariants(queue.dump())
        deliver_to_the_end(queue)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_where_no_command_succeeds_from_some_point_on_no_job_is_lost_or_half_moved(
    failing: FailingLibrary, client: redis.Redis, scenario: Callable[[ModelQueue], Act]
) -> None:
    """Only the counters may then be off: they are statistics."""
    for queue, _ in fail_everywhere(failing, client, scenario, for_good=True):
        check_jobs(queue.dump())
        run_to_the_end(queue)
        check_jobs(queue.dump())
        deliver_to_the_end(queue)
