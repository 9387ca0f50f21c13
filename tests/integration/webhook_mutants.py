"""Mistakes that the functions of webhooks must not have."""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.store.ops import Command
from penstock.broker.store.sync import RedisStore
from tests.contract import test_run_webhooks as running
from tests.contract import test_store_endpoints as facing
from tests.contract import test_store_webhooks as hooking
from tests.contract.model_queue import ModelQueue
from tests.integration.mutant import Mutant


def by_hooked_run(test: Callable[[running.HookedRuns], None]) -> Callable[[ModelQueue], None]:
    def check(queue: ModelQueue) -> None:
        assert isinstance(queue.store, RedisStore)
        # Runs of other mutants lie under the same keys.
        flush = Command(("FLUSHDB",), bool)
        queue.store.send(flush)
        try:
            test(running.on_redis(queue.store))
        finally:
            queue.store.send(flush)

    return check


def succeeds(queue: ModelQueue) -> None:
    hooking.test_every_way_to_an_end_leaves_the_event_of_that_end(queue, "success: job.succeeded")


WEBHOOKS = [
    Mutant(
        "who has ended counts as pending",
        "guard:ended_at_once",
        "  if status ~= 'created' then return end",
        hooking.test_a_job_that_ends_in_the_call_of_its_submit_holds_no_place_of_its_owner,
    ),
    Mutant(
        "an end has no event",
        "  append(job.noted, end_fields(p, id, job.webhook, state, now))",
        "",
        succeeds,
    ),
    Mutant(
        "an event has no place",
        "  hooks.ended(p, serial, job, state, now, todo, last)",
        "",
        succeeds,
    ),
    Mutant(
        "every end is told",
        "guard:wanted",
        "",
        hooking.test_an_end_of_which_nobody_wants_to_hear_makes_no_event_and_holds_nothing,
    ),
    Mutant(
        "all events have one number",
        "guard:number",
        "  local number = 1",
        hooking.test_of_progress_only_the_last_is_kept_and_the_end_replaces_it,
    ),
    Mutant(
        "progress has no pace",
        "guard:progress_pace",
        "  local due = now",
        lambda queue: hooking.test_progress_comes_no_faster_than_twice_a_second(queue, under_way=False),
    ),
    Mutant(
        "the list of given up events has no end",
        "guard:undelivered_max",
        "",
        hooking.test_of_one_owner_a_thousand_given_up_events_are_listed,
    ),
    Mutant(
        "a record goes before its event",
        "guard:pending",
        "",
        hooking.test_a_record_stays_until_its_event_was_delivered,
    ),
    Mutant(
        "an owner piles up events",
        "guard:behind",
        "  if true then return end",
        hooking.test_an_owner_with_too_many_undelivered_events_is_refused_and_others_are_not,
    ),
    Mutant(
        "a record waits for its event for ever",
        "guard:held_most",
        "",
        hooking.test_the_event_that_nobody_delivers_holds_its_record_for_two_days,
    ),
    Mutant(
        "a closed URL is called",
        "guard:gone",
        "",
        facing.test_a_closed_url_is_not_called_again_but_others_are,
    ),
    Mutant(
        "a URL is closed for all owners",
        "redis.sha1hex(endpoint .. url)",
        "redis.sha1hex(url)",
        facing.test_a_closed_url_is_not_called_again_but_others_are,
    ),
    Mutant(
        "an endpoint gets any number side by side",
        "guard:side_by_side",
        "  local free = most",
        facing.test_an_endpoint_gets_only_so_many_side_by_side_and_others_do_not_wait_for_it,
    ),
    Mutant(
        "the end overtakes progress",
        "guard:one_of_a_job",
        "    if false then",
        hooking.test_the_end_waits_until_the_progress_under_way_is_settled,
    ),
    Mutant(
        "a closed endpoint is called",
        "guard:closed",
        "  local fails, is_open, full = tonumber(failures or 0) > 0, true, false",
        facing.test_failures_in_a_row_close_an_endpoint_for_a_while,
    ),
    Mutant(
        "nothing closes an endpoint",
        "guard:trip",
        "",
        facing.test_failures_in_a_row_close_an_endpoint_for_a_while,
    ),
    Mutant(
        "nobody is passed over",
        "guard:skipped",
        "",
        facing.test_owners_that_have_enough_under_way_are_passed_over,
    ),
    Mutant(
        "an endpoint that fails gets as many as any",
        "guard:one_at_a_time",
        "  if is_open then full = take_of(p, endpoint, call.most, now, call) end",
        facing.test_an_endpoint_that_failed_gets_one_event_at_a_time_until_one_succeeds,
    ),
    Mutant("an event is tried for ever", "guard:age", "  if again then state = ''", facing.test_an_event_is_tried_for_a_day),
    Mutant("who lost the lease settles", "guard:take", "", hooking.test_who_lost_the_lease_settles_nothing),
    Mutant(
        "a settle counts twice",
        "guard:sending",
        "",
        hooking.test_a_settle_that_is_repeated_after_a_lost_reply_changes_nothing,
    ),
    Mutant(
        "anybody sends an event again",
        "guard:their_events",
        "    local theirs = true",
        facing.test_a_given_up_event_can_be_sent_once_more_under_the_same_number,
    ),
    Mutant(
        "an event that was never sent is sent again",
        "guard:sent_before",
        "    local was_sent = true",
        facing.test_what_was_never_sent_cannot_be_sent_again,
    ),
    Mutant(
        "a run goes before its event",
        "guard:pending_run",
        "    elseif false then",
        by_hooked_run(running.test_an_old_run_stays_until_its_event_was_delivered),
    ),
    Mutant(
        "a run keeps the event of an end that was taken back",
        "guard:reopened",
        "",
        by_hooked_run(running.test_a_run_that_is_opened_again_takes_its_undelivered_event_back_and_ends_with_another),
    ),
]
