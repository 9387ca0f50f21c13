"""Mistakes in where jobs stand: lines and turns, shards, offers, delays, and the lists by which jobs are found."""

from __future__ import annotations

from tests.contract import test_store_claim as claiming
from tests.contract import test_store_delays as delaying
from tests.contract import test_store_hand_over as handing
from tests.contract import test_store_owners as owning
from tests.contract import test_store_read as reading
from tests.contract import test_store_retire as retiring
from tests.contract import test_store_settle as settling
from tests.contract import test_store_shards as sharding
from tests.contract import test_store_sweep as sweeping
from tests.contract import test_store_tags as tagging
from tests.contract import test_store_turns as turning
from tests.integration.mutant import Mutant, by_slot

RETIRED = [
    Mutant(
        "a retired version gets jobs",
        "guard:retired",
        "  if false then refused = ''",
        retiring.test_a_retired_version_gets_no_jobs_and_others_do,
    ),
    Mutant(
        "a queue is closed over its jobs",
        "guard:retire_empty",
        "",
        retiring.test_a_version_is_not_retired_while_a_job_may_come_back_to_its_line,
    ),
    Mutant(
        "anybody opens a queue",
        "guard:reopen",
        "",
        retiring.test_who_looked_before_the_last_closing_does_not_reopen_it,
    ),
    Mutant(
        "a slot waits where no job can come",
        "guard:no_offer",
        "",
        retiring.test_a_slot_of_a_retired_version_leaves_no_offer,
    ),
    Mutant(
        "a key may lie in two queues",
        "guard:placing",
        "  return false",
        retiring.test_a_key_that_an_older_number_placed_is_refused_and_a_repeat_still_meets_its_first_job,
    ),
    Mutant(
        "an older number of partitions comes back",
        "guard:advance",
        "  redis.call('SET', key, args[1])",
        retiring.test_a_key_that_an_older_number_placed_is_refused_and_a_repeat_still_meets_its_first_job,
    ),
]

OFFERS = [
    Mutant(
        "offers of killed slots stay",
        "guard:dead_offers",
        "",
        retiring.test_offers_of_killed_slots_are_dropped_and_those_of_slots_that_listen_stay,
    ),
    Mutant(
        "an offer without a job is not looked at",
        "guard:offering",
        "",
        retiring.test_offers_of_killed_slots_are_dropped_and_those_of_slots_that_listen_stay,
    ),
    Mutant(
        "a version with offers is forgotten",
        "guard:offered",
        "    else redis.call('SREM', p .. 'versions', version) end",
        retiring.test_offers_are_found_where_a_queue_has_many_versions,
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
        "      for _, job in ipairs(by_owner[owner]) do all[#all + 1] = job end\n    end\n    return all\n  end\n"
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

OWNERS = [
    Mutant(
        "an owner without open jobs is counted for ever",
        "    if n ~= 0 and redis.call('HINCRBY', key, owner, n) <= 0 then redis.call('HDEL', key, owner) end",
        "    if n ~= 0 then redis.call('HINCRBY', key, owner, n) end",
        owning.test_nothing_is_kept_of_an_owner_whose_jobs_have_ended_and_were_collected,
    ),
    Mutant(
        "an owner is noted for ever",
        "  if lists == 0 then redis.call('SREM', p .. 'owners', owner) end",
        "",
        owning.test_nothing_is_kept_of_an_owner_whose_jobs_have_ended_and_were_collected,
    ),
    Mutant(
        "an owner is forgotten with the first job that is collected",
        "  if lists == 0 then redis.call('SREM', p .. 'owners', owner) end",
        "  redis.call('SREM', p .. 'owners', owner)",
        owning.test_an_owner_with_a_job_left_is_known_until_it_is_collected,
    ),
]

DELAYS = [
    Mutant(
        "a start that has come is still to come",
        "if owner and redis.call('HDEL', p .. 'starts', serial) == 1 then count_planned(todo, owner, -1) end",
        "",
        delaying.test_an_owners_jobs_that_wait_for_their_start_are_counted_apart,
    ),
    Mutant(
        "a retry counts as a start",
        "if owner and redis.call('HDEL', p .. 'starts', serial) == 1 then count_planned(todo, owner, -1) end",
        "if owner then count_planned(todo, owner, -1) end",
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
