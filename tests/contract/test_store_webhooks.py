"""Whoever ends a job with a webhook leaves its event; the event is taken under a lease, and delivered or given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

import pytest

from penstock.broker.records import SubmitStatus
from penstock.extensions.webhooks.contract import AttemptEnd, EventSettled, EventState
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import JobId, JobState
from tests.contract.hooked import DELIVERED, GONE, HOOK, LONG, NO_TIME, REFUSED, Deliverer, again, ended, report_progress
from tests.contract.model_queue import ModelQueue
from tests.contract.test_store_hand_over import Listener

# The oracle knows no webhooks.
pytestmark = pytest.mark.parametrize("store", ["redis"], indirect=True)

ENDS_OF_JOBS: dict[str, Callable[[ModelQueue], JobId]] = {}


def _end(event: str) -> Callable[[Callable[[ModelQueue], JobId]], Callable[[ModelQueue], JobId]]:
    def keep(end: Callable[[ModelQueue], JobId]) -> Callable[[ModelQueue], JobId]:
        ENDS_OF_JOBS[f"{end.__name__}: {event}"] = end
        return end

    return keep


@_end("job.succeeded")
def success(queue: ModelQueue) -> JobId:
    return ended(queue)


@_end("job.failed")
def failure(queue: ModelQueue) -> JobId:
    job = queue.leased(webhook=HOOK)
    queue.fail(job)
    return job.id


@_end("job.failed")
def attempts_spent(queue: ModelQueue) -> JobId:
    job = queue.leased(webhook=HOOK, max_attempts=1)
    queue.retry(job)
    return job.id


@_end("job.failed")
def poison(queue: ModelQueue) -> JobId:
    job = queue.leased(webhook=HOOK, max_crashes=1)
    queue.crash(job)
    return job.id


@_end("job.failed")
def ran_for_too_long(queue: ModelQueue) -> JobId:
    job = queue.leased(webhook=HOOK, max_crashes=1)
    queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.0)
    return job.id


@_end("job.cancelled")
def cancelled_while_it_waits(queue: ModelQueue) -> JobId:
    job = queue.submit(webhook=HOOK)
    queue.store.cancel(job)
    return job


@_end("job.cancelled")
def cancelled_while_it_runs(queue: ModelQueue) -> JobId:
    job = queue.leased(webhook=HOOK)
    queue.store.cancel(job.id)
    queue.finish(job)
    return job.id


@_end("job.cancelled")
def cancelled_and_its_worker_lost(queue: ModelQueue) -> JobId:
    job = queue.leased(webhook=HOOK)
    queue.store.cancel(job.id)
    queue.store.sweep(queue.name, gone=["w1"])
    return job.id


@_end("job.expired")
def expired_in_a_sweep(queue: ModelQueue) -> JobId:
    job = queue.submit(webhook=HOOK, deadline_s=0.0)
    queue.store.sweep(queue.name)
    return job


@_end("job.expired")
def expired_in_a_claim(queue: ModelQueue) -> JobId:
    job = queue.submit(webhook=HOOK, deadline_s=0.0)
    queue.claim()
    return job


@_end("job.expired")
def expired_before_its_start(queue: ModelQueue) -> JobId:
    job = queue.submit(webhook=HOOK, deadline_s=0.0, delay_s=60.0)
    queue.store.sweep(queue.name)
    return job


@pytest.mark.parametrize("way", ENDS_OF_JOBS)
def test_every_way_to_an_end_leaves_the_event_of_that_end(queue: ModelQueue, way: str) -> None:
    job, deliverer = ENDS_OF_JOBS[way](queue), Deliverer(queue)
    event = deliverer.take_one()
    assert (event.id, event.event, event.url, event.number) == (job.serial, way.partition(": ")[2], HOOK.url, 1)
    assert event.at == queue.read(job).finished_at
    assert (event.letters, event.tries, event.said) == (HOOK.letters, 1, "")
    assert (deliverer.settle(event), deliverer.take()) == (EventSettled.OK, [])
    assert deliverer.log(job).state is EventState.DELIVERED


def test_a_job_without_a_webhook_has_no_event(queue: ModelQueue) -> None:
    job = queue.leased()
    queue.finish(job)
    deliverer = Deliverer(queue)
    assert deliverer.outbox.take().next_in_s is None
    assert deliverer.outbox.logs([job.id.serial, "unknown"]) == {}
    assert queue.dump().events == {}


def test_an_end_of_which_nobody_wants_to_hear_makes_no_event_and_holds_nothing(queue: ModelQueue) -> None:
    job = ended(queue, Webhook("https://a.example/x", "fc", max_undelivered=1), result_ttl_s=0.0)
    deliverer = Deliverer(queue)
    assert (deliverer.take(), deliverer.log(job).state) == ([], EventState.UNASKED)
    assert queue.put(queue.new(webhook=Webhook("https://a.example/x", max_undelivered=1))).status is SubmitStatus.CREATED
    assert queue.store.sweep(queue.name).collected == 1
    assert deliverer.outbox.logs([job.serial]) == {}


# --- leases -----------------------------------------------------------------------------------------------------------------


def test_a_job_that_ends_in_the_call_of_its_submit_holds_no_place_of_its_owner(queue: ModelQueue) -> None:
    # Regression: a job past its deadline that met a waiting slot ended before it was counted as pending, and counted for ever.
    with closing(Listener(queue, "w1")):
        queue.claim("w1", offer=True)
        job = queue.submit(owner="a", deadline_s=0.0, webhook=Webhook("https://a.example/", "s", 1))
    assert queue.read(job).state is JobState.EXPIRED
    assert queue.dump().events[job.serial].places == frozenset()
    assert queue.put(queue.new(owner="a", webhook=Webhook("https://a.example/", "s", 1))).status is SubmitStatus.CREATED


def test_an_event_that_was_taken_is_not_taken_again_while_its_lease_lasts(queue: ModelQueue) -> None:
    ended(queue)
    deliverer = Deliverer(queue)
    assert len(deliverer.take()) == 1
    again_later = deliverer.outbox.take()
    assert again_later.events == ()
    assert again_later.next_in_s is not None
    assert LONG - 60.0 < again_later.next_in_s <= LONG


def test_the_event_of_a_lost_deliverer_is_taken_again_under_the_same_number(queue: ModelQueue) -> None:
    ended(queue)
    deliverer = Deliverer(queue)
    first = deliverer.take_one(lease_s=NO_TIME)
    second = deliverer.take_one()
    assert (second.id, second.number, second.at) == (first.id, first.number, first.at)
    assert (second.tries, second.token != first.token) == (2, True)


def test_who_lost_the_lease_settles_nothing(queue: ModelQueue) -> None:
    job = ended(queue)
    deliverer = Deliverer(queue)
    first = deliverer.take_one(lease_s=NO_TIME)
    second = deliverer.take_one()
    assert deliverer.settle(first) is EventSettled.STALE
    assert deliverer.log(job).state is EventState.PENDING
    assert deliverer.log(job).attempts == ()
    assert deliverer.settle(second) is EventSettled.OK


def test_a_settle_that_is_repeated_after_a_lost_reply_changes_nothing(queue: ModelQueue) -> None:
    job = ended(queue)
    deliverer = Deliverer(queue)
    event = deliverer.take_one()
    assert deliverer.settle(event) is EventSettled.OK
    deliverer.outbox.send_again([job.serial])
    assert deliverer.settle(event) is EventSettled.STALE
    assert deliverer.take_one().number == event.number


# --- progress ---------------------------------------------------------------------------------------------------------------

WITH_PROGRESS = Webhook(HOOK.url, "sfcxp")


def test_progress_at_a_closed_url_is_passed_over_and_the_end_is_given_up(queue: ModelQueue) -> None:
    """A fault with kill -9 found it: the report left the line of what the owner waits for, and the end was never in it."""
    deliverer = Deliverer(queue)
    first = ended(queue)
    deliverer.settle(deliverer.take_one(), GONE)
    job = queue.leased(webhook=WITH_PROGRESS)
    report_progress(queue, job, 0.5, "half")
    assert deliverer.take() == []
    assert deliverer.outbox.undelivered() == [first.serial]
    queue.finish(job)
    assert queue.store.reconcile(queue.name).orphans == 0
    assert deliverer.take() == []
    assert deliverer.outbox.undelivered() == [job.id.serial, first.serial]


def test_of_progress_only_the_last_is_kept_and_the_end_replaces_it(queue: ModelQueue) -> None:
    job, deliverer = queue.leased(webhook=WITH_PROGRESS), Deliverer(queue)
    report_progress(queue, job, 0.25, "a quarter, no more")
    report_progress(queue, job, 0.5, "half")
    event = deliverer.take_one()
    assert (event.event, event.said, event.number) == ("job.progress", "0.5,half", 2)
    deliverer.settle(event)
    report_progress(queue, job, 0.75, "more")
    queue.finish(job)
    end = deliverer.take_one()
    assert (end.event, end.said, end.number) == ("job.succeeded", "", 4)


def test_progress_that_nobody_asked_for_makes_no_event(queue: ModelQueue) -> None:
    job = queue.leased(webhook=HOOK)
    report_progress(queue, job, 0.5, "half")
    assert Deliverer(queue).outbox.take().next_in_s is None


def test_the_end_waits_until_the_progress_under_way_is_settled(queue: ModelQueue) -> None:
    """Of one job one event after the other: the receiver never hears of progress behind the end."""
    job, deliverer = queue.leased(webhook=WITH_PROGRESS), Deliverer(queue)
    report_progress(queue, job, 0.5, "half")
    progress = deliverer.take_one()
    queue.finish(job)
    held_up = deliverer.outbox.take()
    assert held_up.events == ()
    assert held_up.next_in_s is not None
    assert held_up.next_in_s > LONG / 2, "nobody asks again and again"
    assert deliverer.settle(progress, again(LONG)) is EventSettled.OK
    assert deliverer.take_one().event == "job.succeeded"


@pytest.mark.parametrize("under_way", [False, True], ids=["settled", "under way"])
def test_progress_comes_no_faster_than_twice_a_second(queue: ModelQueue, under_way: bool) -> None:
    job, deliverer = queue.leased(webhook=WITH_PROGRESS), Deliverer(queue)
    report_progress(queue, job, 0.25, "")
    began = time.monotonic()
    first = deliverer.take_one()
    if not under_way:
        deliverer.settle(first)
    report_progress(queue, job, 0.5, "")
    if under_way:
        deliverer.settle(first)
    found = deliverer.outbox.take()
    assert found.events == () or time.monotonic() - began >= 0.5
    assert found.next_in_s is not None


def test_progress_is_tried_three_times_and_then_forgotten(queue: ModelQueue) -> None:
    job, deliverer = queue.leased(webhook=WITH_PROGRESS), Deliverer(queue)
    report_progress(queue, job, 0.5, "half")
    for _ in range(3):
        deliverer.settle(deliverer.take_one(), again())
    assert (deliverer.take(), deliverer.outbox.undelivered()) == ([], [])
    assert deliverer.outbox.send_again([job.id.serial]) == 0
    queue.finish(job)
    assert deliverer.take_one().event == "job.succeeded"


# --- what is kept, and how much an owner may pile up ------------------------------------------------------------------------


def test_a_record_stays_until_its_event_was_delivered(queue: ModelQueue) -> None:
    job = ended(queue, result_ttl_s=0.0)
    deliverer = Deliverer(queue)
    assert queue.store.sweep(queue.name).collected == 0
    deliverer.settle(deliverer.take_one())
    assert queue.store.result(job) is not None


def test_the_event_that_nobody_delivers_holds_its_record_for_two_days(queue: ModelQueue) -> None:
    job = ended(queue, result_ttl_s=0.0)
    deliverer = Deliverer(queue)
    deliverer.age(job, 49 * 3_600.0)
    assert queue.store.sweep(queue.name).collected == 0
    assert deliverer.outbox.undelivered() == [job.serial]
    assert [one.answer for one in deliverer.log(job).attempts] == ["nobody delivered it"]


def test_a_delivered_record_is_collected_with_its_event(queue: ModelQueue) -> None:
    job = ended(queue, result_ttl_s=0.0)
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one())
    assert queue.store.sweep(queue.name).collected == 1
    assert (deliverer.outbox.logs([job.serial]), queue.dump().events) == ({}, {})


def test_a_given_up_record_stays_for_a_day(queue: ModelQueue) -> None:
    job = ended(queue, result_ttl_s=0.0)
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one(), REFUSED)
    assert queue.store.sweep(queue.name).collected == 0
    assert queue.store.result(job) is not None


def test_a_job_with_an_event_to_deliver_is_not_forgotten_before_its_time(queue: ModelQueue) -> None:
    job = ended(queue)
    deliverer = Deliverer(queue)
    assert queue.store.forget([job]) == 0
    deliverer.settle(deliverer.take_one())
    assert queue.store.forget([job]) == 1


def test_an_owner_with_too_many_undelivered_events_is_refused_and_others_are_not(queue: ModelQueue) -> None:
    few = Webhook(HOOK.url, max_undelivered=2)
    jobs = [queue.new(webhook=few, owner="ann") for _ in range(3)]
    assert [answer.status for answer in queue.store.submit(jobs)] == [SubmitStatus.CREATED] * 2 + [SubmitStatus.UNDELIVERED]
    refused = queue.new(webhook=few, owner="ann")
    assert queue.put(refused).status is SubmitStatus.UNDELIVERED
    assert queue.put(queue.new(webhook=few, owner="bob")).status is SubmitStatus.CREATED
    assert queue.put(queue.new(owner="ann")).status is SubmitStatus.CREATED, "a job without a webhook adds nothing"
    assert queue.put(queue.new(webhook=Webhook(HOOK.url, max_undelivered=3), owner="ann")).status is SubmitStatus.CREATED


@pytest.mark.parametrize("end", [DELIVERED, REFUSED], ids=["delivered", "given up"])
def test_what_was_delivered_or_given_up_no_longer_counts(queue: ModelQueue, end: AttemptEnd) -> None:
    one = Webhook(HOOK.url, max_undelivered=1)
    ended(queue, one)
    assert queue.put(queue.new(webhook=one)).status is SubmitStatus.UNDELIVERED
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one(), end)
    assert queue.put(queue.new(webhook=one)).status is SubmitStatus.CREATED


def test_of_one_owner_a_thousand_given_up_events_are_listed(queue: ModelQueue) -> None:
    other = ended(queue, owner="bob")
    for _ in range(5):
        queue.store.submit([queue.new(owner="ann", webhook=HOOK) for _ in range(201)])
    jobs = queue.store.newest(queue.name, owner="ann", limit=2_000)
    for job in jobs:
        queue.store.cancel(job, owner="ann")
    deliverer = Deliverer(queue)
    for event in deliverer.take(per_endpoint=1):
        deliverer.settle(event, GONE if event.owner == "ann" else REFUSED)
    while deliverer.outbox.take().next_in_s is not None:
        pass
    found = deliverer.outbox.undelivered(owner="ann", limit=2_000)
    assert found == [job.serial for job in jobs[:1_000]]
    assert deliverer.outbox.undelivered(owner="bob") == [other.serial]
    assert deliverer.log(jobs[-1]).state is EventState.DISMISSED
