"""Mistakes that the Lua functions must not have, each with the contract test that notices the mistake."""

from __future__ import annotations

from tests.contract import test_audit_log as auditing
from tests.contract import test_membership as belonging
from tests.contract import test_run_lists as listing_runs
from tests.contract import test_run_parts as sharing
from tests.contract import test_runs as running
from tests.contract import test_store_claim as claiming
from tests.contract import test_store_owners as owning
from tests.contract import test_store_read as reading
from tests.contract import test_store_report as reporting
from tests.contract import test_store_settle as settling
from tests.contract import test_store_submit as submitting
from tests.contract import test_store_sweep as sweeping
from tests.integration.mutant import Mutant, by_finish, by_run, by_store
from tests.integration.queue_mutants import DELAYS, HAND_OVER, INDEXES, OFFERS, OWNERS, RETIRED, SHARDS, TAGS, TURNS
from tests.integration.webhook_mutants import WEBHOOKS

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
    Mutant(
        "anybody may be told",
        "guard:watched_owner",
        "  local is_theirs = true",
        reporting.test_the_job_of_another_owner_is_read_and_not_watched,
    ),
    Mutant(
        "acts have no shares",
        "guard:share_of_acts",
        "  local owner = redis.call('ZRANGE', p .. 'shares:' .. group, 0, 0)[1]",
        lambda queue: auditing.test_an_owner_that_acts_without_end_pushes_out_no_act_of_others(auditing.emptied(queue.store)),
    ),
    Mutant("no quota", "guard:quota", "  return false", owning.test_an_owner_at_its_quota_is_refused_and_others_are_not),
    Mutant(
        "a quota is never freed",
        "  count(todo, 'ended:' .. state, 1)\n  count_open(todo, job.owner, -1)",
        "  count(todo, 'ended:' .. state, 1)",
        owning.test_every_way_to_an_end_frees_a_place,
    ),
    Mutant(
        "a job deletes what it was given",
        "guard:own_blob",
        "    if ref ~= '' then blobs[#blobs + 1] = ref end",
        sweeping.test_a_job_that_was_given_a_blob_does_not_delete_it,
    ),
    Mutant(
        "the collected have no owner",
        "serial, owner, 'PX', math",
        "serial, '', 'PX', math",
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
        "what is forgotten leaves no trace",
        "guard:forgotten",
        "",
        sweeping.test_a_forgotten_job_leaves_nothing_but_a_tombstone,
    ),
    Mutant(
        "looking for an input is charged",
        "guard:reading",
        "  job.noted = {}",
        settling.test_a_job_whose_input_is_being_read_waits_aside_uncharged,
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

REPORTS = [
    Mutant("who lost the job reports", "guard:report", "", reporting.test_who_does_not_hold_the_job_reports_nothing),
    Mutant(
        "attempts share one stream",
        "guard:mark",
        "  local same = redis.call('EXISTS', key) == 1",
        reporting.test_the_first_chunk_of_the_next_attempt_restarts_the_stream,
    ),
    Mutant(
        "chunks are appended behind a gap",
        "guard:gap",
        "",
        reporting.test_an_attempt_whose_stream_vanished_is_over,
    ),
    Mutant(
        "a reader waits where the store has lost chunks",
        "guard:seen",
        "",
        reporting.test_a_reader_who_saw_more_than_the_store_has_reads_from_the_start,
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
    Mutant(
        "a part of an ended run is driven",
        "guard:part_of_ended",
        "  if ENDED[state] then return {'final', record_of(r, id)} end",
        by_run(sharing.test_a_part_that_fails_ends_its_run_and_the_other_parts_are_left),
    ),
    Mutant("anybody splits a run", "guard:split_fence", "", by_run(sharing.test_a_run_is_split_once_and_only_by_its_driver)),
    Mutant(
        "an owner has more runs than it may have",
        "guard:owner_runs",
        "",
        by_run(listing_runs.test_an_owner_has_so_many_runs_that_have_not_ended_and_no_more),
    ),
    Mutant(
        "a list looks at all runs",
        "guard:list_bound",
        "",
        by_run(listing_runs.test_one_call_of_a_list_looks_at_500_runs_and_says_where_it_goes_on),
    ),
    Mutant("a run is split again", "guard:split_once", "", by_run(sharing.test_a_run_is_split_once_and_only_by_its_driver)),
]

MEMBERS = [
    Mutant(
        "processes of any protocol version serve beside each other",
        "guard:protocol",
        "    end",
        by_store(belonging.test_a_process_that_cannot_read_a_members_forms_is_refused_in_one_sentence),
    ),
    Mutant(
        "a newer member takes any older process for one that fits",
        "protocol < tonumber(since)",
        "false",
        by_store(belonging.test_a_process_whose_forms_a_member_cannot_read_is_refused),
    ),
    Mutant(
        "workers that announce no protocol version are overlooked",
        "guard:no_protocol",
        "",
        by_store(belonging.test_a_process_stays_out_beside_a_worker_that_announces_no_version),
    ),
    Mutant(
        "a member that was gone comes back unseen",
        "guard:gone_member",
        "    if tonumber(ends or 0) <= now then",
        by_store(belonging.test_a_member_that_others_hold_for_gone_must_fit_them),
    ),
]

MUTANTS = [
    *MEMBERS,
    *WEBHOOKS,
    *TAGS,
    *OWNERS,
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
    *RETIRED,
    *OFFERS,
    *INDEXES,
]
