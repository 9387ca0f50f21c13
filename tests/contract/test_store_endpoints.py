"""One line of events per endpoint: side by side, closed after failures; events tried again and given up."""

from __future__ import annotations

import pytest

from penstock.extensions.webhooks.contract import AttemptEnd, EventCounts, EventOutcome, EventSettled, EventState
from penstock.extensions.webhooks.webhook import Webhook
from tests.contract.hooked import GONE, HOOK, LONG, REFUSED, Deliverer, again, ended
from tests.contract.model_queue import ModelQueue

# The oracle knows no webhooks.
pytestmark = pytest.mark.parametrize("store", ["redis"], indirect=True)

# --- endpoints --------------------------------------------------------------------------------------------------------------


def test_an_endpoint_gets_only_so_many_side_by_side_and_others_do_not_wait_for_it(queue: ModelQueue) -> None:
    for _ in range(5):
        ended(queue)
    other = ended(queue, Webhook("https://b.example/"))
    deliverer = Deliverer(queue)
    taken = deliverer.take(per_endpoint=2)
    assert len(taken) == 3
    assert other.serial in {event.id for event in taken}
    assert deliverer.take(per_endpoint=2) == []
    deliverer.settle(next(event for event in taken if event.id != other.serial))
    assert len(deliverer.take(per_endpoint=2)) == 1


def test_a_take_is_no_larger_than_asked(queue: ModelQueue) -> None:
    for host in "abc":
        for _ in range(3):
            ended(queue, Webhook(f"https://{host}.example/"))
    deliverer = Deliverer(queue)
    assert [len(deliverer.take(limit=4)) for _ in range(4)] == [4, 4, 1, 0]


def test_urls_of_one_origin_are_one_endpoint_and_owners_have_endpoints_of_their_own(queue: ModelQueue) -> None:
    for owner in ("ann", "bob"):
        for path in "xy":
            ended(queue, Webhook(f"https://a.example/{path}"), owner=owner)
    taken = Deliverer(queue).take(per_endpoint=1)
    assert sorted(event.owner for event in taken) == ["ann", "bob"]


def test_owners_that_have_enough_under_way_are_passed_over(queue: ModelQueue) -> None:
    for owner in ("ann", "bob"):
        ended(queue, owner=owner)
    deliverer = Deliverer(queue)
    assert [event.owner for event in deliverer.take(skip_owners=["ann"])] == ["bob"]
    # The endpoint is looked at again after a moment, not by the next call.
    later = deliverer.outbox.take()
    assert later.events == ()
    assert later.next_in_s is not None
    assert later.next_in_s <= 1.0


def test_an_endpoint_that_failed_gets_one_event_at_a_time_until_one_succeeds(queue: ModelQueue) -> None:
    for _ in range(4):
        ended(queue)
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one(limit=1), again())
    probe = deliverer.take_one()
    assert deliverer.take() == []
    deliverer.settle(probe)
    assert len(deliverer.take()) == 3


def fail_times(deliverer: Deliverer, times: int, closed_s: float) -> None:
    for _ in range(times):
        deliverer.settle(deliverer.take_one(limit=1), again(closed_s=closed_s))


def test_failures_in_a_row_close_an_endpoint_for_a_while(queue: ModelQueue) -> None:
    ended(queue)
    deliverer = Deliverer(queue)
    fail_times(deliverer, 4, LONG)
    fifth = deliverer.take_one()
    assert fifth.tries == 5, "four are not enough"
    deliverer.settle(fifth, again(closed_s=LONG))
    other = ended(queue, Webhook("https://b.example/"))
    assert [event.id for event in deliverer.take()] == [other.serial]
    ended(queue)
    closed = deliverer.outbox.take()
    assert closed.events == ()
    assert closed.next_in_s is not None
    assert closed.next_in_s > LONG / 2


def test_a_success_opens_an_endpoint(queue: ModelQueue) -> None:
    for _ in range(2):
        ended(queue)
    deliverer = Deliverer(queue)
    fail_times(deliverer, 7, 0.0)
    deliverer.settle(deliverer.take_one(limit=1))
    fail_times(deliverer, 1, LONG)
    assert len(deliverer.take()) == 1, "one failure after a success closes nothing"


def test_a_receiver_that_asks_for_a_pause_gets_nothing_meanwhile(queue: ModelQueue) -> None:
    for _ in range(2):
        ended(queue)
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one(limit=1), again(pause_s=1_000_000.0))
    found = deliverer.outbox.take()
    assert found.events == ()
    assert found.next_in_s is not None
    assert 3_000.0 < found.next_in_s <= 3_600.0, "an hour is the most that it may ask for"


def test_a_closed_url_is_not_called_again_but_others_are(queue: ModelQueue) -> None:
    """410 of one URL says nothing of another, nor of the same URL of another owner."""
    first, second = ended(queue, owner="ann"), ended(queue, owner="ann")
    deliverer = Deliverer(queue)
    event = deliverer.take_one(limit=1)
    assert deliverer.settle(event, GONE) is EventSettled.UNDELIVERED
    kept = ended(queue, Webhook("https://a.example/other"), owner="ann"), ended(queue, owner="bob")
    assert {event.id for event in deliverer.take()} == {job.serial for job in kept}
    assert deliverer.outbox.undelivered(owner="ann") == [second.serial, first.serial]
    assert [(one.outcome, one.answer) for one in deliverer.log(second).attempts] == [("skipped", "closed by 410")]


# --- again, and given up ----------------------------------------------------------------------------------------------------


def test_an_attempt_that_failed_is_tried_again_after_its_time(queue: ModelQueue) -> None:
    job = ended(queue)
    deliverer = Deliverer(queue)
    assert deliverer.settle(deliverer.take_one(), again(0.0)) is EventSettled.OK
    event = deliverer.take_one()
    assert event.tries == 2
    deliverer.settle(event, again(LONG))
    found = deliverer.outbox.take()
    assert found.events == ()
    assert found.next_in_s is not None
    assert found.next_in_s > LONG / 2
    log = deliverer.log(job)
    assert [(one.tried, one.outcome, one.answer, one.event, one.took_s) for one in log.attempts] == [
        (1, "again", "500", "job.succeeded", 0.1),
        (2, "again", "500", "job.succeeded", 0.1),
    ]
    assert (log.state, log.url, log.number) == (EventState.PENDING, HOOK.url, 1)


def test_the_last_attempt_comes_when_the_time_is_over(queue: ModelQueue) -> None:
    ended(queue)
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one(), again(LONG), give_up_s=60.0)
    found = deliverer.outbox.take()
    assert found.next_in_s is not None
    assert found.next_in_s <= 60.0


def test_an_event_is_given_up_after_its_time_and_listed(queue: ModelQueue) -> None:
    job = ended(queue, owner="ann")
    deliverer = Deliverer(queue)
    assert deliverer.settle(deliverer.take_one(), again(), give_up_s=0.0) is EventSettled.UNDELIVERED
    assert (deliverer.take(), deliverer.log(job).state) == ([], EventState.UNDELIVERED)
    assert deliverer.outbox.undelivered(owner="ann") == deliverer.outbox.undelivered() == [job.serial]
    assert (deliverer.outbox.undelivered(owner="bob"), deliverer.outbox.undelivered(before=job.serial)) == ([], [])
    assert deliverer.outbox.counts() == EventCounts(0, 1)


def test_an_event_is_tried_for_a_day(queue: ModelQueue) -> None:
    job = ended(queue)
    deliverer = Deliverer(queue)
    deliverer.age(job, 23 * 3_600.0)
    assert deliverer.settle(deliverer.take_one(), again()) is EventSettled.OK
    deliverer.age(job, 2 * 3_600.0)
    assert deliverer.settle(deliverer.take_one(), again()) is EventSettled.UNDELIVERED


def test_what_can_never_be_delivered_is_given_up_at_once_and_says_nothing_of_the_receiver(queue: ModelQueue) -> None:
    first = ended(queue)
    for _ in range(2):
        ended(queue)
    deliverer = Deliverer(queue)
    assert deliverer.settle(deliverer.take_one(limit=1), REFUSED) is EventSettled.UNDELIVERED
    assert deliverer.outbox.undelivered() == [first.serial]
    assert len(deliverer.take()) == 2


def test_old_events_of_a_closed_endpoint_are_given_up_without_a_try(queue: ModelQueue) -> None:
    jobs = [ended(queue) for _ in range(3)]
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one(limit=1), again(pause_s=LONG))
    ended(queue)
    assert deliverer.take(give_up_s=LONG) == []
    assert deliverer.outbox.undelivered() == []
    ended(queue)
    assert deliverer.take(give_up_s=0.0) == []
    assert len(deliverer.outbox.undelivered()) == 5
    assert [one.answer for one in deliverer.log(jobs[2]).attempts] == ["the endpoint fails"]


def test_a_given_up_event_can_be_sent_once_more_under_the_same_number(queue: ModelQueue) -> None:
    job = ended(queue, owner="ann")
    deliverer = Deliverer(queue)
    event = deliverer.take_one()
    deliverer.settle(event, GONE)
    assert deliverer.outbox.send_again([job.serial, "unknown"], owner="bob") == 0
    assert deliverer.outbox.send_again([job.serial, "unknown"], owner="ann") == 1
    once_more = deliverer.take_one()
    assert (once_more.number, once_more.at, once_more.tries) == (event.number, event.at, 1)
    assert deliverer.outbox.undelivered() == []
    deliverer.settle(once_more)
    assert deliverer.log(job).state is EventState.DELIVERED
    assert deliverer.outbox.send_again([job.serial]) == 1, "a delivered one too"


def test_what_was_never_sent_cannot_be_sent_again(queue: ModelQueue) -> None:
    waiting, unasked, pending = queue.submit(webhook=HOOK), ended(queue, Webhook(HOOK.url, "f")), ended(queue)
    deliverer = Deliverer(queue)
    assert deliverer.outbox.send_again([job.serial for job in (waiting, unasked, pending)]) == 0
    assert deliverer.outbox.dismiss([job.serial for job in (waiting, unasked, pending)]) == 0


def test_a_dismissed_event_leaves_the_list_and_can_still_be_sent(queue: ModelQueue) -> None:
    job = ended(queue, owner="ann")
    deliverer = Deliverer(queue)
    deliverer.settle(deliverer.take_one(), REFUSED)
    assert [deliverer.outbox.dismiss([job.serial], owner=owner) for owner in ("bob", "ann", "ann")] == [0, 1, 0]
    assert (deliverer.outbox.undelivered(), deliverer.log(job).state) == ([], EventState.DISMISSED)
    assert deliverer.outbox.send_again([job.serial], owner="ann") == 1


def test_the_log_has_the_last_attempts_and_no_more_than_a_few_words_of_each(queue: ModelQueue) -> None:
    job = ended(queue)
    deliverer = Deliverer(queue)
    for number in range(25):
        end = AttemptEnd(EventOutcome.AGAIN, f"{number}: a;b,c" + "x" * 100, circuit_s=(0.0, 0.0))
        deliverer.settle(deliverer.take_one(), end)
    attempts = deliverer.log(job).attempts
    assert [one.tried for one in attempts] == list(range(6, 26))
    assert attempts[-1].answer == ("24: a b c" + "x" * 100)[:64]
