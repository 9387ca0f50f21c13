from __future__ import annotations

from typing import Any

from penstock.broker.records import Claim, ClaimedJob
from penstock.job import JobId, Payload, Priority
from penstock.model_spec import BatchPolicy, ModelSpec
from penstock.workers.slot.batch import IDLE, ChildLoad
from penstock.workers.slot.batcher import Batcher
from penstock.workers.slot.latency import Latency

CALL_S = 0.0005
RUN_S = 0.100


def job(number: int = 0) -> ClaimedJob:
    id = JobId(f"{number:026d}", "m")
    return ClaimedJob(id, "1:w:n", Payload("application/json", b"1"), Priority.INTERACTIVE, 0.0, 10.0, 1, 0)


def taken(count: int = 1, *, depth: int = 0) -> Claim:
    return Claim(jobs=tuple(job(n) for n in range(count)), reason="idle", depth=depth)


NOTHING = Claim()


def spec(**policy: Any) -> ModelSpec:
    return ModelSpec("m", "m.py", policy=BatchPolicy(**policy))


def batcher(*, limit: int = 8, run_s: float = RUN_S, wait_s: float = 0.010) -> Batcher:
    """A batcher that has learned the run times of its sizes and the cost of a call."""
    latency = Latency()
    for size in (1, 2, 4, 8, 16, 32, 64):
        if size <= limit:
            latency.observe(size, run_s)
    made = Batcher(spec(max_batch_size=limit, max_wait_s=wait_s), latency)
    made.on_claim(NOTHING, asked_at=-CALL_S, now=0.0)
    made.view.on_wake_up()
    return made


def test_an_idle_device_takes_what_is_there_at_once() -> None:
    request = batcher().next_request(1.0, IDLE)
    assert request is not None
    assert (request.limit, request.enough, request.max_wait_s) == (8, 1, 0.0)


def test_after_a_vain_question_an_idle_slot_waits_for_a_wake_up() -> None:
    slot = batcher()
    slot.on_claim(NOTHING, asked_at=1.0, now=1.001)
    assert slot.next_request(1.002) is None
    slot.view.on_wake_up()
    assert slot.next_request(1.003) is not None


def test_a_lost_wake_up_costs_at_most_a_second() -> None:
    slot = batcher()
    slot.on_claim(NOTHING, asked_at=1.0, now=1.0)
    assert slot.ask_at(1.5) == 2.0
    assert slot.next_request(1.999) is None
    assert slot.next_request(2.0) is not None


def test_after_a_batch_was_taken_an_idle_slot_asks_again_without_a_wake_up() -> None:
    slot = batcher()
    slot.on_claim(taken(1), asked_at=1.0, now=1.0)
    assert slot.next_request(1.1, IDLE) is not None


def test_a_slot_asks_again_when_the_store_says() -> None:
    slot = batcher()
    slot.on_claim(Claim(depth=1, retry_in_s=0.008), asked_at=1.0, now=1.0)
    assert slot.ask_at(1.001) == 1.008
    assert slot.next_request(1.007) is None
    assert slot.next_request(1.0081) is not None


def test_a_full_batch_is_prefetched_as_soon_as_one_runs() -> None:
    slot = batcher()
    slot.on_claim(taken(8, depth=8), asked_at=1.0, now=1.0)
    request = slot.next_request(1.001, ChildLoad(1, 8, 1.0))
    assert request is not None
    assert request.enough == request.limit == 8


def test_a_partial_batch_keeps_growing_until_just_before_the_running_one_ends() -> None:
    slot = batcher()
    slot.on_claim(taken(4, depth=3), asked_at=1.0 - CALL_S, now=1.0)
    running = ChildLoad(1, 4, 1.0)
    assert slot.next_request(1.050, running) is None
    due = slot.ask_at(1.050, running)
    assert 1.090 < due < 1.0 + RUN_S
    request = slot.next_request(due, running)
    assert request is not None
    assert request.enough == 1


def test_just_before_the_end_the_question_waits_to_go_with_the_settling() -> None:
    slot = batcher()
    slot.on_claim(taken(4, depth=3), asked_at=1.0 - CALL_S, now=1.0)
    assert slot.next_request(1.0 + RUN_S - CALL_S / 2, ChildLoad(1, 4, 1.0)) is None


def test_a_run_shorter_than_a_call_is_never_interrupted_by_one() -> None:
    slot = batcher(run_s=0.0001)
    slot.on_claim(taken(1), asked_at=1.0, now=1.0)
    assert slot.next_request(1.00005, ChildLoad(1, 1, 1.0)) is None


def test_a_long_run_is_used_to_look_for_work_that_nobody_announced() -> None:
    slot = batcher()
    slot.on_claim(taken(1), asked_at=1.0 - CALL_S, now=1.0)
    running = ChildLoad(1, 1, 1.0)
    assert slot.next_request(slot.ask_at(1.01, running), running) is not None


def test_a_run_of_a_few_calls_is_used_to_fetch_the_next_batch() -> None:
    """Regression: with 64 callers of 4 KiB bodies, runs of 21 ms and claims of 4, a slot that found the queue empty fetched
    nothing until the run was over. The device was idle for a quarter of the time, with a full batch in the queue.
    """
    slot = batcher(run_s=0.021)
    for _ in range(40):
        slot.on_claim(taken(8), asked_at=1.0 - 0.004, now=1.0)
    running = ChildLoad(1, 8, 1.0)
    at = slot.ask_at(1.001, running)
    assert at < 1.021 - 0.004
    assert slot.next_request(at, running) is not None


def test_beside_shards_such_a_run_is_left_alone() -> None:
    """The rows of shards keep the device busy, and on one core the additional call slowed a run down by a fifth."""
    slot = batcher(run_s=0.021)
    for _ in range(40):
        slot.on_claim(taken(8), asked_at=1.0 - 0.004, now=1.0)
    assert slot.ask_at(1.001, ChildLoad(1, 8, 1.0, shards=1)) > 1.021


def test_a_full_queue_is_not_asked_twice_in_vain() -> None:
    slot = batcher()
    slot.on_claim(taken(8, depth=20), asked_at=1.0, now=1.0)
    assert slot.next_request(1.0, ChildLoad(1, 8, 1.0)) is not None
    slot.on_claim(Claim(depth=20, retry_in_s=1e9), asked_at=1.0, now=1.0)
    assert slot.next_request(1.01, ChildLoad(1, 8, 1.0)) is None


def test_a_vain_question_for_a_full_batch_does_not_keep_an_idle_device_waiting() -> None:
    slot = batcher()
    slot.on_claim(taken(8, depth=8), asked_at=1.0, now=1.0)
    full = slot.next_request(1.001, ChildLoad(1, 8, 1.0))
    assert full is not None
    assert full.enough == 8
    slot.on_claim(Claim(depth=3, retry_in_s=1e9), asked_at=1.001, now=1.002)
    request = slot.next_request(1.1, IDLE)
    assert request is not None
    assert request.enough == 1


def test_never_more_than_two_batches_are_held() -> None:
    slot = batcher()
    slot.on_claim(taken(8, depth=100), asked_at=1.0, now=1.0)
    assert slot.next_request(1.01, ChildLoad(2, 8, 1.0)) is None


def test_nothing_joins_a_job_that_must_run_alone() -> None:
    slot = batcher()
    slot.on_claim(taken(1, depth=100), asked_at=1.0, now=1.0)
    assert slot.next_request(1.01, ChildLoad(1, 1, 1.0, alone=True)) is None


def test_with_other_slots_a_slot_waits_for_an_efficient_batch_up_to_the_policys_limit() -> None:
    slot = batcher()
    slot.peers = 1
    request = slot.next_request(1.0)
    assert request is not None
    # All sizes take equally long here, so only a nearly full batch is efficient.
    assert (request.enough, request.max_wait_s) == (8, 0.010)
    assert request.hurry_s > RUN_S


def test_the_slack_asked_for_is_what_the_batch_at_hand_needs() -> None:
    latency = Latency()
    for size in (1, 2, 4, 8):
        latency.observe(size, 0.005 + 0.001 * size)
    slot = Batcher(spec(max_batch_size=8), latency)
    request = slot.next_request(1.0)
    assert request is not None
    full, one = latency.bound(8) or 0, latency.bound(1) or 0
    assert request.min_slack_s == full
    assert abs(request.min_slack_s - 7 * request.slack_per_item_s - one) < 1e-9


def test_unknown_sizes_are_reached_by_doubling() -> None:
    latency = Latency()
    slot = Batcher(spec(max_batch_size=20), latency)
    limits = []
    for _ in range(6):
        limits.append(slot.limit)
        slot.on_ran(slot.limit, 0.010)
    assert limits == [1, 2, 4, 8, 16, 20]


def test_nothing_is_claimed_ahead_while_the_batch_that_runs_lets_the_next_one_be_larger() -> None:
    """Claimed ahead, each size ran twice: 64 streams of 0.65 s met their largest batch after 7 s instead of 4."""
    slot = Batcher(spec(max_batch_size=64), Latency())
    slot.on_ran(4, RUN_S)
    slot.on_claim(taken(8, depth=50), asked_at=1.0, now=1.0)
    running = ChildLoad(1, 8, 1.0)
    for now in (1.001, 1.0 + 0.99 * RUN_S, 1.0 + 2 * RUN_S):
        assert slot.next_request(now, running) is None
        assert slot.ask_at(now, running) > now
    slot.on_ran(8, RUN_S)
    request = slot.next_request(1.2, IDLE)
    assert request is not None
    assert request.limit == 16


def test_a_batch_that_did_not_fit_caps_the_next_ones_and_the_cap_grows_back_slowly() -> None:
    slot = batcher()
    slot.cap(2)
    assert slot.limit == 2
    for _ in range(16):
        slot.on_ran(2, 0.010)
    assert slot.limit == 3


def test_a_cap_that_proves_right_again_is_tested_less_often() -> None:
    slot = batcher()
    for _ in range(3):
        slot.cap(2)
    for _ in range(63):
        slot.on_ran(2, 0.010)
    assert slot.limit == 2
    slot.on_ran(2, 0.010)
    assert slot.limit == 3


def passes(slot: Batcher, count: int) -> None:
    for _ in range(count):
        slot.on_ran(slot.limit, 0.010)


def test_a_cap_that_keeps_growing_grows_faster_again() -> None:
    # Another program used the memory for an hour, so the limit was hit repeatedly until the program ended.
    slot = batcher()
    for _ in range(4):
        slot.cap(2)
    passes(slot, 128)
    assert slot.limit == 3
    passes(slot, 128)
    assert slot.limit == 4
    passes(slot, 64)
    assert slot.limit == 5
    passes(slot, 32 + 16 + 8)
    assert slot.limit == 8


def test_a_cap_outlives_its_child_but_not_a_smaller_policy() -> None:
    slot = batcher()
    slot.cap(4)
    slot.follow(BatchPolicy(max_batch_size=8))
    assert slot.limit == 4
    slot.follow(BatchPolicy(max_batch_size=2))
    assert slot.limit == 2


def test_what_the_warm_up_found_memory_for_is_a_cap_unless_a_smaller_one_is_known() -> None:
    slot = batcher()
    slot.follow(BatchPolicy(max_batch_size=8), fits=4)
    assert slot.limit == 4
    slot.cap(2)
    slot.follow(BatchPolicy(max_batch_size=8), fits=4)
    assert slot.limit == 2


def test_a_stock_celery_client_makes_an_idle_slot_look_more_often_for_a_while() -> None:
    slot = batcher()
    slot.on_claim(Claim(messages=(b"{}",)), asked_at=1.0, now=1.0)
    slot.on_claim(NOTHING, asked_at=1.1, now=1.1)
    assert slot.ask_at(1.1) < 1.15
    slot.on_claim(NOTHING, asked_at=40.0, now=40.0)
    assert slot.ask_at(40.0) == 41.0


def test_a_child_that_wishes_for_few_items_gets_no_more_and_the_batch_is_full_by_efficiency() -> None:
    slot = batcher(limit=32)
    slot.on_ran(32, RUN_S, wish=4)
    assert slot.limit == 4
    assert slot.reason(Claim(jobs=tuple(job(n) for n in range(4)), reason="full")) == "efficiency"
    assert slot.reason(Claim(jobs=tuple(job(n) for n in range(4)), reason="idle")) == "idle"
    slot.on_ran(4, RUN_S, wish=0)
    assert slot.limit == 32
    assert slot.reason(Claim(jobs=tuple(job(n) for n in range(32)), reason="full")) == "full"


def test_more_than_one_calls_worth_is_asked_for_only_of_a_long_queue_and_leaves_half_of_it() -> None:
    slot = batcher(limit=8)
    slot.on_ran(8, RUN_S, wish=32)
    assert slot.limit == 8
    slot.on_claim(taken(8, depth=40), asked_at=1.0, now=1.001)
    assert slot.limit == 20
    slot.on_claim(taken(8, depth=400), asked_at=1.0, now=1.001)
    assert slot.limit == 32
    slot.peers = 9
    assert slot.limit == 20


def test_while_memory_is_short_no_batch_grows_beyond_what_fits() -> None:
    slot = batcher(limit=8)
    slot.on_ran(8, RUN_S, wish=32)
    slot.on_claim(taken(8, depth=400), asked_at=1.0, now=1.001)
    slot.cap(3)
    assert slot.limit == 3


def overlapping(**load: Any) -> ChildLoad:
    return ChildLoad(**{"room": 4, **load})


def test_a_child_that_runs_items_side_by_side_gets_what_there_is_as_far_as_it_has_room() -> None:
    slot = batcher(limit=8)
    slot.peers = 3
    request = slot.next_request(1.0, overlapping(batches=60))
    assert request is not None
    # The slack is that of one item: it waits for no other.
    assert (request.limit, request.enough, request.max_wait_s, request.slack_per_item_s) == (4, 1, 0.0, 0.0)
    assert 0.0 < request.min_slack_s < 2 * RUN_S
    assert slot.next_request(1.0, overlapping(room=100)).limit == 8  # type: ignore[union-attr]


def test_a_child_without_room_or_with_a_suspect_gets_nothing() -> None:
    slot = batcher()
    for load in (overlapping(room=0, batches=4), overlapping(alone=True, batches=1)):
        assert slot.next_request(1.0, load) is None
        assert slot.ask_at(1.0, load) == 2.0


def test_the_store_is_asked_once_more_after_it_gave_something_so_that_it_wakes_the_slot_for_the_next_job() -> None:
    slot, busy = batcher(), overlapping(batches=1, room=3)
    slot.on_claim(taken(1), asked_at=1.0, now=1.0)
    assert slot.ask_at(1.0, busy) == 1.0
    assert slot.next_request(1.0, busy) is not None
    slot.on_claim(NOTHING, asked_at=1.0, now=1.001)
    assert slot.next_request(1.002, busy) is None
    assert slot.ask_at(1.002, busy) == 2.001
    slot.view.on_wake_up()
    assert slot.next_request(1.003, busy) is not None


def test_a_slot_that_never_ran_anything_is_not_held_to_small_claims_of_items_that_overlap() -> None:
    slot = Batcher(spec(max_batch_size=64), Latency())
    assert slot.next_request(1.0, overlapping(room=64)).limit == 64  # type: ignore[union-attr]
