"""claim: which job goes first, what a batch may hold, when a batch leaves, and what happens to jobs that come too late."""

from __future__ import annotations

import pytest

from penstock.broker.records import Claim
from penstock.job import LATE_BAND, Call, JobId, JobState, Payload, Priority
from tests.contract.model_queue import ModelQueue
from tests.eventually import eventually


def ids(claim: Claim) -> list[JobId]:
    return [job.id for job in claim.jobs]


def test_a_claimed_job_carries_all_that_a_run_needs(queue: ModelQueue) -> None:
    new = queue.new(input=Payload("application/json", b"[7]"), deadline_s=60.0, owner="team-a")
    queue.put(new)
    claim = queue.claim("w1", nonce="abc")
    [job] = claim.jobs
    assert (job.id, job.input, job.priority, job.owner) == (new.id, new.input, Priority.INTERACTIVE, "team-a")
    assert (job.attempts, job.crashes, job.token) == (1, 0, "1:w1:abc")
    assert job.created_at <= claim.now < job.deadline_at


@pytest.mark.parametrize("call", [Call.PREDICT, Call.EXPLAIN])
def test_what_is_asked_of_the_model_comes_with_the_claim_also_the_second_time(queue: ModelQueue, call: Call) -> None:
    queue.submit(call=call)
    first = queue.take()
    queue.release(first)
    assert [first.call, queue.take().call] == [call, call]


def test_a_claimed_job_is_leased_and_nobody_else_gets_it(queue: ModelQueue) -> None:
    job = queue.leased("w1")
    assert queue.claim("w2").jobs == ()
    assert (queue.state(job.id), queue.place(job.id)) == (JobState.LEASED, "held:w1")


def test_an_empty_queue_says_wait_for_a_wake_up(queue: ModelQueue) -> None:
    claim = queue.claim()
    assert (claim.jobs, claim.reason, claim.depth, claim.retry_in_s) == ((), "", 0, None)


def test_every_lease_of_a_job_has_another_token(queue: ModelQueue) -> None:
    first = queue.leased()
    queue.release(first)
    second = queue.take(nonce="other")
    assert second.token != first.token
    assert second.token.startswith("2:")


def test_two_stores_that_gave_out_the_same_epoch_still_differ_by_nonce(queue: ModelQueue) -> None:
    """A store that was rolled back hands out the same epoch again; only the worker's own nonce tells the leases apart."""
    queue.submit()
    first = queue.take(nonce="before")
    queue.submit()
    other = queue.take(nonce="after")
    assert first.token.split(":")[:2] == other.token.split(":")[:2]
    assert first.token != other.token


def test_the_earliest_deadline_goes_first(queue: ModelQueue) -> None:
    late, soon, middle = queue.submit(deadline_s=90), queue.submit(deadline_s=30), queue.submit(deadline_s=60)
    assert ids(queue.claim()) == [soon, middle, late]


def test_interactive_jobs_go_before_bulk_whatever_the_deadline(queue: ModelQueue) -> None:
    bulk = queue.bulk(deadline_s=10)
    interactive = queue.submit(deadline_s=90)
    assert ids(queue.claim()) == [interactive, bulk]


def test_a_claim_takes_no_more_than_its_limit(queue: ModelQueue) -> None:
    first, second, third = (queue.submit(deadline_s=s) for s in (30, 60, 90))
    claim = queue.claim(limit=2)
    assert (ids(claim), claim.reason, claim.depth) == ([first, second], "full", 1)
    assert ids(queue.claim()) == [third]


def test_a_claim_takes_only_its_own_version(queue: ModelQueue) -> None:
    one, two = queue.submit(version="1"), queue.submit(version="2")
    assert ids(queue.claim(version="2")) == [two]
    assert ids(queue.claim(version="1")) == [one]


def test_a_batch_stays_within_its_bytes_but_holds_at_least_one(queue: ModelQueue) -> None:
    big = Payload("application/json", b"x" * 100)
    jobs = [queue.submit(input=big, deadline_s=s) for s in (10, 20, 30)]
    assert ids(queue.claim(limit_bytes=200)) == jobs[:2]
    assert ids(queue.claim(limit_bytes=1)) == jobs[2:]


def test_bulk_jobs_ride_along_in_free_places(queue: ModelQueue) -> None:
    bulks = [queue.bulk(deadline_s=s) for s in (10, 20)]
    interactive = queue.submit()
    assert ids(queue.claim(limit=2)) == [interactive, bulks[0]]


def test_bulk_jobs_get_their_turn_behind_a_steady_interactive_load(queue: ModelQueue) -> None:
    bulk = queue.bulk()
    for _ in range(40):
        queue.submit()
    served = [ids(queue.claim(limit=2)) for _ in range(16)]
    assert any(bulk in batch for batch in served), "16 full batches, none with the bulk job"


def test_interactive_jobs_are_not_held_up_by_bulk(queue: ModelQueue) -> None:
    for _ in range(20):
        queue.bulk()
    for _ in range(28):
        queue.submit()
    turns = [{job.priority for job in queue.claim(limit=4).jobs} for _ in range(7)]
    assert turns == [{Priority.INTERACTIVE}] * 7


# --- release: full, idle, wait, deadline ---------------------------------------------------------------------------------


def test_an_idle_pool_never_waits(queue: ModelQueue) -> None:
    queue.submit()
    claim = queue.claim(enough=8, max_wait_s=60.0)
    assert (len(claim.jobs), claim.reason) == (1, "idle")


def test_the_lone_first_job_of_a_fresh_model_meets_an_idle_slot_and_fills_nothing(queue: ModelQueue) -> None:
    """A slot that has run nothing yet asks for one job. Its first job was said to have left because the batch was full."""
    queue.submit()
    assert queue.claim(limit=1).reason == "idle"
    queue.submit()
    queue.submit()
    assert queue.claim("w2", limit=1).reason == "full", "one waits behind it"


def test_a_small_batch_waits_for_company_while_others_run(queue: ModelQueue) -> None:
    queue.leased("w1")
    waiting = queue.submit()
    claim = queue.claim("w2", enough=8, max_wait_s=60.0)
    assert (claim.jobs, claim.reason, claim.depth) == ((), "", 1)
    assert claim.retry_in_s == pytest.approx(60.0, abs=5.0)
    assert (queue.state(waiting), queue.read(waiting).attempts) == (JobState.QUEUED, 0)


def test_a_batch_that_is_big_enough_leaves(queue: ModelQueue) -> None:
    queue.leased("w1")
    for _ in range(4):
        queue.submit()
    claim = queue.claim("w2", enough=4, max_wait_s=60.0)
    assert (len(claim.jobs), claim.reason) == (4, "full")


def test_a_limit_below_enough_is_enough(queue: ModelQueue) -> None:
    queue.leased("w1")
    queue.submit()
    queue.submit()
    assert queue.claim("w2", limit=2, enough=8, max_wait_s=60.0).reason == "full"


def test_a_batch_leaves_when_its_first_job_has_waited_long_enough(queue: ModelQueue) -> None:
    queue.leased("w1")
    queue.submit()
    assert queue.claim("w2", enough=8, max_wait_s=0.0).reason == "wait"


def test_the_answer_says_when_the_wait_is_over(queue: ModelQueue) -> None:
    queue.leased("w1")
    queue.submit()
    retry_in_s = queue.claim("w2", enough=8, max_wait_s=1.0).retry_in_s
    assert retry_in_s is not None
    assert 0.0 < retry_in_s <= 1.0
    assert eventually(lambda: queue.claim("w2", enough=8, max_wait_s=1.0).reason) == "wait"


def test_a_batch_leaves_when_the_slack_of_its_first_job_runs_out(queue: ModelQueue) -> None:
    queue.leased("w1")
    queue.submit(deadline_s=30.0)
    assert queue.claim("w2", enough=8, max_wait_s=60.0, hurry_s=31.0).reason == "deadline"


def test_the_wait_ends_with_the_slack_when_that_is_shorter(queue: ModelQueue) -> None:
    queue.leased("w1")
    queue.submit(deadline_s=30.0)
    claim = queue.claim("w2", enough=8, max_wait_s=600.0, hurry_s=10.0)
    assert claim.retry_in_s == pytest.approx(20.0, abs=5.0)


def test_a_claim_that_does_not_wait_for_company_is_called_idle(queue: ModelQueue) -> None:
    queue.leased("w1")
    queue.submit()
    assert queue.claim("w2").reason == "idle"


# --- late jobs -----------------------------------------------------------------------------------------------------------


def test_a_job_past_its_deadline_ends_instead_of_running(queue: ModelQueue) -> None:
    late, live = queue.submit(deadline_s=0.0), queue.submit()
    claim = queue.claim()
    assert (ids(claim), claim.expired) == ([live], 1)
    job = queue.read(late)
    assert (job.state, job.attempts, job.started_at) == (JobState.EXPIRED, 0, None)
    assert job.error is not None
    assert job.error.code == "expired"


def test_a_suspect_past_its_deadline_ends_instead_of_running(queue: ModelQueue) -> None:
    job = queue.leased(deadline_s=0.5)
    queue.crash(job)
    eventually(lambda: queue.store.stats(queue.name).now >= job.deadline_at)
    claim = queue.claim()
    assert (claim.jobs, claim.expired) == ((), 1)
    assert queue.state(job.id) is JobState.EXPIRED


def test_a_job_that_would_force_a_tiny_batch_steps_aside(queue: ModelQueue) -> None:
    tight, roomy = queue.submit(deadline_s=5.0), queue.submit(deadline_s=60.0)
    claim = queue.claim(limit=1, min_slack_s=10.0)
    assert (ids(claim), claim.stepped_over) == ([roomy], 1)
    assert queue.store.stats(queue.name).ready == {0: 0, LATE_BAND: 1, 9: 0}
    assert queue.state(tight) is JobState.QUEUED


def test_jobs_that_stepped_aside_run_when_nothing_live_waits(queue: ModelQueue) -> None:
    tight = queue.submit(deadline_s=5.0)
    claim = queue.claim(min_slack_s=10.0)
    assert (ids(claim), claim.stepped_over) == ([tight], 1)


def test_a_smaller_batch_asks_for_less_slack(queue: ModelQueue) -> None:
    """A full batch of 8 needs 10 s, and each missing item makes that 1 s shorter: one waiting job needs 3 s and has 5 s."""
    queue.submit(deadline_s=5.0)
    claim = queue.claim(limit=8, min_slack_s=10.0, slack_per_item_s=1.0)
    assert (len(claim.jobs), claim.stepped_over) == (1, 0)


def test_jobs_in_time_are_found_behind_any_number_that_step_aside(queue: ModelQueue) -> None:
    for _ in range(6):
        queue.submit(deadline_s=5.0)
    roomy = [queue.submit(deadline_s=60.0 + n) for n in range(2)]
    claim = queue.claim(limit=2, min_slack_s=10.0)
    assert (ids(claim), claim.stepped_over) == (roomy, 6)


def test_late_jobs_take_places_that_jobs_in_time_leave_free(queue: ModelQueue) -> None:
    tight, roomy = queue.submit(deadline_s=5.0), queue.submit(deadline_s=60.0)
    assert ids(queue.claim(limit=4, min_slack_s=10.0)) == [roomy, tight]


def test_a_claim_looks_no_further_than_its_batch_reaches(queue: ModelQueue) -> None:
    """A claim must stay short however long the queue is, so jobs further back that have expired are left to the sweep."""
    tight = [queue.submit(deadline_s=5.0 + n) for n in range(2)]
    far = queue.bulk(deadline_s=0.0)
    claim = queue.claim(limit=2, min_slack_s=10.0)
    assert (ids(claim), claim.expired, queue.state(far)) == (tight, 0, JobState.QUEUED)


def test_late_jobs_go_before_bulk(queue: ModelQueue) -> None:
    bulk, tight = queue.bulk(deadline_s=60.0), queue.submit(deadline_s=5.0)
    assert ids(queue.claim(min_slack_s=10.0)) == [tight, bulk]


# --- suspects ------------------------------------------------------------------------------------------------------------


def test_a_suspect_runs_alone_and_first(queue: ModelQueue) -> None:
    suspect = queue.leased()
    queue.crash(suspect)
    others = [queue.submit() for _ in range(3)]
    claim = queue.claim("w2")
    assert (ids(claim), claim.reason, claim.jobs[0].crashes) == ([suspect.id], "solo", 1)
    assert ids(queue.claim("w2")) == others


def test_a_suspect_does_not_wait_for_company(queue: ModelQueue) -> None:
    suspect = queue.leased()
    queue.leased("w2")
    queue.crash(suspect)
    assert queue.claim("w3", enough=8, max_wait_s=60.0).reason == "solo"


def test_a_suspect_of_another_version_is_left_alone(queue: ModelQueue) -> None:
    queue.submit(version="2")
    [suspect] = queue.claim(version="2").jobs
    queue.crash(suspect)
    assert queue.claim(version="1").jobs == ()
    assert ids(queue.claim(version="2")) == [suspect.id]


def lost_often(queue: ModelQueue, count: int = 1) -> list[JobId]:
    """Submit jobs, and make them suspects by the loss of two workers."""
    jobs = [queue.submit() for _ in range(count)]
    for _ in range(2):
        lose(queue, queue.claim("w9", limit=count), "w9")
    assert {queue.place(job) for job in jobs} == {"solo"}
    return jobs


def lose(queue: ModelQueue, claim: Claim, worker: str = "w1") -> Claim:
    """Lose the worker that made this claim."""
    assert queue.store.sweep(queue.name, gone=[worker]).requeued == len(claim.jobs)
    return claim


def test_a_suspect_that_lost_workers_runs_alone_after_a_batch_of_the_others(queue: ModelQueue) -> None:
    [suspect] = lost_often(queue)
    others = [queue.submit(), queue.submit()]
    claims = [queue.claim(worker) for worker in ("w1", "w2")]
    assert [(ids(claim), claim.reason) for claim in claims] == [(others, "idle"), ([suspect], "solo")]


def test_each_suspect_that_lost_workers_gets_one_run_between_two_batches_of_the_others(queue: ModelQueue) -> None:
    suspects = lost_often(queue, 2)
    others = [queue.submit() for _ in range(3)]
    served = []
    for _ in range(9):
        claim = queue.claim(limit=1)
        served += ids(claim)
        if served[-1] in suspects:
            lose(queue, claim)
        else:
            queue.finish(claim.jobs[0])
    assert served == [job for other in others for job in (other, *suspects)]


def test_a_suspect_that_lost_yet_another_worker_goes_behind_the_other_suspects(queue: ModelQueue) -> None:
    suspects = lost_often(queue, 3)
    served = [ids(lose(queue, queue.claim())) for _ in range(6)]
    assert served == [[job] for job in [*suspects, *suspects]]


def test_a_suspect_that_crashed_its_child_goes_before_all_others(queue: ModelQueue) -> None:
    lost_often(queue)
    queue.submit()
    crashed = queue.take("w2")
    queue.submit()
    queue.crash(crashed, worker="w2")
    assert ids(queue.claim()) == [crashed.id]


def test_a_suspect_that_lost_workers_is_not_kept_waiting_behind_a_batch(queue: ModelQueue) -> None:
    """A suspect that waited behind the batch would be charged with the loss of a worker that had not begun the suspect."""
    [suspect] = lost_often(queue)
    running = [queue.submit(), queue.submit()]
    assert ids(queue.claim("w1")) == running
    again = queue.claim("w1")
    assert (again.jobs, again.retry_in_s) == ((), 1.0)
    queue.submit()
    assert queue.claim("w1").jobs == (), "a slot that claims ahead again and again would never be free"
    assert ids(queue.claim("w2")) == [suspect]


def test_a_suspect_is_taken_when_the_others_still_wait_for_company(queue: ModelQueue) -> None:
    [suspect] = lost_often(queue)
    queue.leased("w1")
    queue.submit()
    claim = queue.claim("w2", enough=8, max_wait_s=60.0)
    assert (ids(claim), claim.reason, claim.retry_in_s) == ([suspect], "solo", None)
