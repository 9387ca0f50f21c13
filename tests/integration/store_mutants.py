"""Mistakes that the Lua functions must not have, each with the contract test that notices the mistake."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from penstock.broker.run_contract import Runs
from penstock.broker.store.library import body
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from tests.contract import test_runs as running
from tests.contract import test_store_claim as claiming
from tests.contract import test_store_delays as delaying
from tests.contract import test_store_hand_over as handing
from tests.contract import test_store_owners as owning
from tests.contract import test_store_read as reading
from tests.contract import test_store_report as reporting
from tests.contract import test_store_settle as settling
from tests.contract import test_store_shards as sharding
from tests.contract import test_store_submit as submitting
from tests.contract import test_store_sweep as sweeping
from tests.contract import test_store_tags as tagging
from tests.contract import test_store_turns as turning
from tests.contract.model_queue import ModelQueue


@dataclass(frozen=True)
class Mutant:
    """`text`, or the line that ends with `text` as its guard mark, becomes `instead`; then `notices` must fail."""

    name: str
    text: str
    instead: str
    notices: Callable[[ModelQueue], None]

    def source(self) -> str:
        library = body()
        found = [line for line in library.splitlines() if line.endswith(f"-- {self.text}")] or [self.text]
        places = library.count(found[0])
        assert places == 1, f"mutant {self.name!r}: {places} times {self.text!r}; adapt the mutant to the library"
        return library.replace(found[0], self.instead)


def by_finish(test: Callable[[ModelQueue, settling.Settling], None]) -> Callable[[ModelQueue], None]:
    return lambda queue: test(queue, ModelQueue.finish)


def by_slot(test: Callable[[ModelQueue, handing.Listener], None]) -> Callable[[ModelQueue], None]:
    def check(queue: ModelQueue) -> None:
        with closing(handing.Listener(queue, "w1")) as slot:
            test(queue, slot)

    return check


def by_run(test: Callable[[Runs], None]) -> Callable[[ModelQueue], None]:
    def check(queue: ModelQueue) -> None:
        assert isinstance(queue.store, RedisStore)
        test(RunStore(queue.store))

    return check


TOKENS = [
    Mutant("no fence", "guard:fence", "", by_finish(settling.test_a_zombie_writes_nothing_while_another_worker_runs_its_job)),
    Mutant("no state check", "guard:state", "", by_finish(settling.test_an_empty_token_settles_nothing)),
    Mutant(
        "a repeat is not recognised",
        "job.final_token == token then return 'already'",
        "false then return 'already'",
        settling.test_a_finish_repeated_after_a_lost_reply_is_answered_already,
    ),
    Mutant(
        "the token has no nonce",
        "local token = epoch .. ':' .. worker .. ':' .. nonce",
        "local token = epoch .. ':' .. worker .. ':' .. 'x'",
        claiming.test_two_stores_that_gave_out_the_same_epoch_still_differ_by_nonce,
    ),
    Mutant(
        "sweep keeps the token",
        "guard:sweep_token",
        "    redis.call('HSET', p .. 'job:' .. serial, 'state', 'queued')",
        sweeping.test_a_job_taken_back_has_no_token_left,
    ),
    Mutant(
        "sweep takes back a live lease",
        "'ZRANGEBYSCORE', p .. 'leases', '-inf', now",
        "'ZRANGEBYSCORE', p .. 'leases', '-inf', '+inf'",
        sweeping.test_a_live_lease_is_left_alone,
    ),
]

KEYS_AND_OWNERS = [
    Mutant("no dedup", "guard:dedup", "  local first = false", submitting.test_the_same_key_and_body_give_the_first_job),
    Mutant(
        "a key alone decides",
        "string.sub(first, 27) == fingerprint",
        "true",
        submitting.test_the_same_key_with_another_body_is_refused_and_stores_nothing,
    ),
    Mutant(
        "anybody may cancel",
        "(job.owner or '') ~= args[2]",
        "false",
        reading.test_the_job_of_another_owner_does_not_exist,
    ),
    Mutant("no quota", "guard:quota", "  return false", owning.test_an_owner_at_its_quota_is_refused_and_others_are_not),
    Mutant(
        "a quota is never freed",
        "  count(todo, 'ended:' .. state, 1)\n  count_open(todo, job.owner, -1)",
        "  count(todo, 'ended:' .. state, 1)",
        owning.test_every_way_to_an_end_frees_a_place,
    ),
    Mutant(
        "the collected have no owner",
        "serial, owner, 'PX'",
        "serial, '', 'PX'",
        owning.test_a_collected_job_is_remembered_with_its_owner,
    ),
]

CANCEL = [
    Mutant(
        "finish ignores a cancel request",
        "guard:cancel",
        "      if false then",
        by_finish(settling.test_a_job_whose_end_was_asked_for_ends_cancelled_whatever_its_run_says),
    ),
    Mutant("a final job can be cancelled", "guard:final", "", reading.test_a_final_job_cannot_be_cancelled),
    Mutant(
        "cancel leaves the job in its queue",
        "  dequeue(p, serial, job)\n  cancel_job(",
        "  cancel_job(",
        reading.test_a_waiting_job_is_cancelled_at_once,
    ),
]

LIMITS = [
    Mutant(
        "retry has no limit",
        "guard:attempts",
        "  if false then",
        settling.test_a_retry_at_the_limit_of_attempts_fails_with_its_error,
    ),
    Mutant(
        "no limit of losses in a row",
        "guard:losses_in_a_row",
        "  local row_over = false",
        sweeping.test_a_job_that_loses_worker_after_worker_is_given_up,
    ),
    Mutant(
        "no limit of losses",
        "guard:losses",
        "  if row_over then",
        sweeping.test_two_jobs_that_each_lose_worker_after_worker_do_not_excuse_each_other_for_ever,
    ),
    Mutant(
        "a storm is held against a job",
        "guard:in_a_row",
        "  job.in_a_row = job.in_a_row + 1",
        sweeping.test_a_storm_that_takes_the_workers_of_others_too_is_not_held_against_a_job,
    ),
    Mutant(
        "whatever is named is forgotten",
        "guard:forget",
        "    if redis.call('EXISTS', p .. 'job:' .. serial) == 1 then",
        sweeping.test_only_what_succeeded_is_forgotten,
    ),
    Mutant(
        "crashes have no limit",
        "guard:crashes",
        "  if false then",
        settling.test_a_job_that_crashes_too_often_is_given_up_as_poison,
    ),
    Mutant(
        "late jobs run",
        "      if deadline - now >= math.max(need, 1) then",
        "      if true then",
        claiming.test_a_job_past_its_deadline_ends_instead_of_running,
    ),
    Mutant(
        "an overrun is not noticed",
        "    if now - since >= tonumber(args[3]) then",
        "    if false then",
        sweeping.test_a_job_that_runs_too_long_is_taken_back_as_crashed,
    ),
]

SUSPECTS = [
    Mutant(
        "who lost workers goes back to the head of the line",
        "guard:solo_place",
        "",
        claiming.test_a_suspect_that_lost_yet_another_worker_goes_behind_the_other_suspects,
    ),
    Mutant(
        "suspects go before all others",
        "guard:solo_turn",
        "  return true",
        claiming.test_each_suspect_that_lost_workers_gets_one_run_between_two_batches_of_the_others,
    ),
    Mutant(
        "suspects go behind all others",
        "guard:solo_turn",
        "  return false",
        claiming.test_each_suspect_that_lost_workers_gets_one_run_between_two_batches_of_the_others,
    ),
    Mutant(
        "who crashed its child waits its turn",
        "  local place = job.created",
        "  local place = WEIGHT",
        claiming.test_a_suspect_that_crashed_its_child_goes_before_all_others,
    ),
    Mutant(
        "a suspect is claimed ahead",
        "guard:solo_free",
        "  local free = suspect",
        claiming.test_a_suspect_that_lost_workers_is_not_kept_waiting_behind_a_batch,
    ),
]

TURNS = [
    Mutant(
        "owners do not take turns",
        "  return redis.call('EXISTS', turns_of(p, version, 0), turns_of(p, version, LATE), turns_of(p, version, 9)) > 0",
        "  return false",
        turning.test_a_flood_of_one_owner_does_not_hold_up_another,
    ),
    Mutant(
        "who was served keeps the turn",
        "    if shared and reason ~= 'solo' then pass_turns(p, version, jobs) end",
        "",
        turning.test_a_flood_of_one_owner_does_not_hold_up_another,
    ),
    Mutant(
        "a newcomer goes first",
        "'NX', last + 1, owner",
        "'NX', -last, owner",
        turning.test_a_newcomer_waits_for_one_job_of_each_other_owner,
    ),
    Mutant(
        "the turn of an empty line stays in the way",
        "      dropped = tally.left > 0",
        "",
        turning.test_owners_whose_jobs_have_gone_do_not_keep_others_from_being_found,
    ),
    Mutant(
        "a batch takes one owner's jobs first",
        "  local order, place, more = {}, 1, true",
        "  if true then\n    local all = {}\n    for _, owner in ipairs(owners) do\n"
        "      for _, job in ipairs(found[owner]) do all[#all + 1] = job end\n    end\n    return all\n  end\n"
        "  local order, place, more = {}, 1, true",
        turning.test_a_batch_holds_as_many_of_each_owner_and_fills_up_with_those_who_have_more,
    ),
    Mutant(
        "jobs of nobody get no turn beside owners",
        "    take_turn(p, version, band, '')",
        "",
        turning.test_jobs_of_nobody_take_turns_with_those_of_owners,
    ),
    Mutant(
        "who steps aside has no turn there",
        "        if owner ~= '' then take_turn(p, version, LATE, owner) end",
        "",
        turning.test_a_job_of_an_owner_that_would_force_a_tiny_batch_steps_aside_in_its_own_line,
    ),
]

INDEXES = [
    Mutant("the batch stays in the queue", "guard:pop", "", claiming.test_a_claimed_job_is_leased_and_nobody_else_gets_it),
    Mutant(
        "sweep forgets to queue again",
        "    requeue(p, serial, job)\n    count(todo, 'redelivered:worker_lost', 1)",
        "    count(todo, 'redelivered:worker_lost', 1)",
        sweeping.test_the_jobs_of_an_expired_lease_are_queued_again,
    ),
    Mutant(
        "suspects run with others",
        "  if job.crashes > 0 or job.losses >= SUSPECT_LOSSES then",
        "  if false then",
        settling.test_a_suspect_that_was_given_back_unrun_is_still_a_suspect,
    ),
    Mutant(
        "an end leaves no outbox row",
        "  later(todo, 'ZADD', p .. 'outbox', now, serial)",
        "",
        settling.test_a_finished_job_shows_its_output_and_its_batch,
    ),
    Mutant(
        "an end is not counted",
        "  count(todo, 'ended:' .. state, 1)",
        "",
        reading.test_a_waiting_job_is_cancelled_at_once,
    ),
    Mutant(
        "tickets stay behind",
        "  for band, n in pairs(popped) do pop_tickets(p, band, n) end",
        "",
        claiming.test_a_claim_takes_no_more_than_its_limit,
    ),
]

REPORTS = [
    Mutant("who lost the job reports", "guard:report", "", reporting.test_who_does_not_hold_the_job_reports_nothing),
    Mutant(
        "attempts share one stream",
        "guard:mark",
        "  if redis.call('EXISTS', key) == 0 then",
        reporting.test_the_first_chunk_of_the_next_attempt_restarts_the_stream,
    ),
    Mutant(
        "a repeated report is appended",
        "guard:known",
        "    new[#new + 1] = chunk",
        reporting.test_a_report_repeated_after_a_lost_reply_appends_nothing_twice,
    ),
    Mutant(
        "progress beside chunks is no change",
        "guard:pushed_mark",
        "  if chunks ~= '' then mark = job.epoch .. '.' .. restarts end",
        reporting.test_a_push_with_more_news_than_chunks_is_a_change,
    ),
    Mutant(
        "a push has any number of chunks",
        "guard:pushed_bytes",
        "",
        reporting.test_large_chunks_do_not_travel_in_the_push,
    ),
]

RUNS = [
    Mutant("two drivers of one run", "guard:run_held", "", by_run(running.test_a_driver_holds_its_run_while_its_lease_lasts)),
    Mutant("a lost driver writes", "guard:run_fence", "", by_run(running.test_a_run_whose_drivers_lease_passed_is_anybodys)),
    Mutant(
        "a deadly run is taken for ever",
        "guard:run_spent",
        "  if false then",
        by_run(running.test_a_run_whose_drivers_die_one_after_the_other_fails_and_says_why),
    ),
    Mutant("an ended run goes on", "guard:run_final", "", by_run(running.test_a_driver_that_ended_its_run_says_no_more)),
]

SHARDS = [
    Mutant("shards stand with the others", "guard:shard_line", "", sharding.test_shards_are_never_mixed_into_ordinary_batches),
    Mutant(
        "shards hold up others",
        "guard:shards_are_idle",
        "    do return true end",
        sharding.test_a_slot_with_shards_alone_is_idle,
    ),
    Mutant(
        "a shard may not take long", "guard:got_on", "    if false then", sharding.test_a_shard_whose_rows_get_on_may_take_long
    ),
    Mutant(
        "a shard comes unheard", "guard:shard_wake", "    wake(p)", sharding.test_a_new_shard_wakes_slots_that_wait_for_more
    ),
    Mutant(
        "shards count as work that was asked for",
        "guard:want",
        "  local due = want and depth(p) >= tonumber(want)",
        sharding.test_a_slot_that_waits_for_more_jobs_is_not_woken_because_shards_stand_in_line,
    ),
]

HAND_OVER = [
    Mutant(
        "jobs go to a slot that does not hear",
        "guard:heard",
        "    if sent then return true end",
        handing.test_a_slot_that_does_not_listen_gets_nothing_and_the_job_is_as_new,
    ),
    Mutant("an offer is used twice", "guard:once", "", by_slot(handing.test_an_offer_is_used_once)),
    Mutant(
        "who asks without offering is given jobs",
        "guard:offer",
        "",
        by_slot(handing.test_a_slot_that_asks_again_keeps_its_offer_and_one_that_asks_without_ends_it),
    ),
]

DELAYS = [
    Mutant(
        "a start that has come is still to come",
        "  if job.not_before and not job.epoch then count_planned(todo, job.owner, -1) end",
        "",
        delaying.test_an_owners_jobs_that_wait_for_their_start_are_counted_apart,
    ),
    Mutant(
        "a retry counts as a start",
        "  if job.not_before and not job.epoch then count_planned(todo, job.owner, -1) end",
        "  if job.not_before then count_planned(todo, job.owner, -1) end",
        delaying.test_a_retry_is_no_start,
    ),
    Mutant(
        "a delay is ignored",
        "guard:start",
        "  local job = in_line(p, at, args, deadline, call)",
        delaying.test_a_job_with_a_delay_is_stored_and_put_aside,
    ),
    Mutant(
        "jobs with a delay have no limit",
        "guard:delayed_depth",
        "",
        delaying.test_jobs_with_a_delay_count_all_that_wait_and_those_of_now_do_not_count_later_ones,
    ),
    Mutant(
        "a job with a delay outlives its deadline",
        "later(todo, 'ZADD', p .. 'delayed', math.min(job.start, now + args[at + 3]), serial)",
        "later(todo, 'ZADD', p .. 'delayed', job.start, serial)",
        delaying.test_a_job_whose_deadline_comes_before_its_start_expires_then,
    ),
]

TAGS = [
    Mutant("tags outlive their job", "guard:untag", "", tagging.test_the_tags_of_a_collected_job_are_gone),
    Mutant(
        "a tag finds longer ones",
        "local from = '(' .. tag .. (before == '' and '-' or ',' .. before)",
        "local from = '(' .. tag .. (before == '' and '~' or ',' .. before)",
        tagging.test_a_tag_finds_its_own_jobs_and_no_others,
    ),
    Mutant(
        "all owners share their tags",
        "  return {p .. 'tagged', p .. 'tagged:' .. owner}",
        "  return {p .. 'tagged', p .. 'tagged:a', p .. 'tagged:b'}",
        tagging.test_an_owner_finds_its_own_jobs,
    ),
]

MUTANTS = [
    *TAGS,
    *DELAYS,
    *RUNS,
    *REPORTS,
    *SHARDS,
    *HAND_OVER,
    *TOKENS,
    *KEYS_AND_OWNERS,
    *CANCEL,
    *LIMITS,
    *SUSPECTS,
    *TURNS,
    *INDEXES,
]
