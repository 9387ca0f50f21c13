"""When jobs are admitted, and what is predicted of their wait."""

from dataclasses import replace

import pytest

from penstock.broker.backlog import (
    ROOM_COMES_S,
    UNKNOWN_START_S,
    Backlog,
    QueueFull,
    SlotCapacity,
    admit,
    capacity_of,
    eta_s,
    on_demand,
    predicted_s,
)
from penstock.broker.records import QueueStats
from penstock.errors import DeadlineUnlikely, Overloaded
from penstock.gateway.asgi.problems import retry_after
from penstock.model_spec import ScalingInfo, SlotInfo

FAST = SlotCapacity(ready_slots=1, per_s=1_000.0, latency_s={1: 0.0055, 32: 0.021}, full_per_s=1_000.0)


def slot(state: str = "ready", **latency_s: float) -> SlotInfo:
    return SlotInfo("square", "1", state, latency_s={int(size[1:]): seconds for size, seconds in latency_s.items()})


def stats(now: float, *, depth: int, ended: int, leased: int = 0) -> QueueStats:
    return QueueStats("square", now, ready={0: depth}, leased=leased, ended={"succeeded": ended})


@pytest.mark.parametrize(("drain_s", "draw", "expected_s"), [(0.0, 0.5, 1), (10.0, 0.0, 8), (10.0, 0.5, 10), (10.0, 0.999, 12)])
def test_retry_after_is_the_drain_spread_by_a_fifth(drain_s: float, draw: float, expected_s: int) -> None:
    assert retry_after(drain_s, draw=draw) == expected_s


def test_retry_after_never_exceeds_two_minutes() -> None:
    assert retry_after(10_000.0, draw=0.9) == 120


def test_capacity_is_the_sum_of_each_ready_slots_best_size() -> None:
    capacity = capacity_of([slot(b1=0.010, b8=0.020), slot(b1=0.005), slot("loading", b1=0.001)])
    assert capacity.ready_slots == 2
    assert capacity.per_s == pytest.approx(8 / 0.020 + 1 / 0.005)
    assert capacity.latency_s == {1: 0.010, 8: 0.020}


def test_a_slot_that_runs_items_side_by_side_ends_as_many_times_more() -> None:
    alone = slot(b1=0.5)
    capacity = capacity_of([replace(alone, at_once=64)])
    assert (capacity.per_s, capacity.full_per_s) == (128.0, 128.0)
    backlog = Backlog()
    backlog.record_submit(128, now=1.0)
    assert predicted_s(backlog, capacity, 1.0) == pytest.approx(1.5)
    assert predicted_s(backlog, capacity_of([alone]), 1.0) == pytest.approx(64.5)


def test_one_cheap_job_that_ran_alone_does_not_open_the_door_for_all_others() -> None:
    """Regression: 44 of the first 60 jobs per second were admitted at 20 per second, because a job of 0.24 ms had run alone."""
    capacity = capacity_of([slot(b1=0.000_24, b2=0.1, b4=0.2)])
    backlog = Backlog()
    backlog.record_submit(36, now=1.0)
    with pytest.raises(DeadlineUnlikely):
        admit(backlog, capacity, 1.0, deadline_s=2.0, max_depth=10_000)
    # Nor does the share of the learned rate below which nothing observed counts.
    backlog.record_stats(stats(10.0, depth=30, ended=0), 1.25, batch_size=4)
    backlog.record_stats(stats(10.25, depth=40, ended=5), 1.5, batch_size=4)
    assert backlog.rate(capacity, 1.5) == pytest.approx(20.0)
    # Nor do two batches that happen to end between two looks.
    backlog.record_stats(stats(10.5, depth=40, ended=13), 1.75, batch_size=4)
    assert backlog.rate(capacity, 1.75) == pytest.approx(20.0)


def test_a_slot_that_has_learned_nothing_counts_as_ready_but_promises_no_rate() -> None:
    assert capacity_of([slot()]) == SlotCapacity(1, 0.0, {})


def test_a_newcomer_runs_in_the_smallest_learned_batch_that_holds_those_before_it() -> None:
    capacity = SlotCapacity(1, 400.0, {1: 0.010, 8: 0.020})
    assert [capacity.batch_s(ahead) for ahead in (0, 1, 7, 50)] == [0.010, 0.020, 0.020, 0.020]


def test_the_estimated_depth_drains_at_the_known_rate_between_two_looks() -> None:
    backlog = Backlog()
    backlog.record_submit(100, now=10.0)
    assert backlog.waiting(1_000.0, now=10.05) == pytest.approx(50.0)
    assert backlog.waiting(1_000.0, now=11.0) == 0.0


def test_without_a_known_rate_the_last_depth_stands() -> None:
    backlog = Backlog()
    backlog.record_submit(100, now=10.0)
    assert backlog.waiting(0.0, now=99.0) == 100.0


def test_a_queue_that_never_ran_dry_tells_the_real_rate() -> None:
    backlog = Backlog()
    backlog.record_stats(stats(1.0, depth=50, ended=0), now=1.0, batch_size=8)
    backlog.record_stats(stats(1.5, depth=60, ended=200), now=1.5, batch_size=8)
    assert backlog.rate(FAST, now=1.6) == pytest.approx(400.0)


def test_a_queue_that_ran_dry_tells_nothing_of_the_rate() -> None:
    backlog = Backlog()
    backlog.record_stats(stats(1.0, depth=0, ended=0), now=1.0, batch_size=8)
    backlog.record_stats(stats(1.5, depth=60, ended=200), now=1.5, batch_size=8)
    assert backlog.rate(FAST, now=1.6) == FAST.per_s


def test_a_short_stall_does_not_lower_the_rate_below_a_tenth_of_the_learned_one() -> None:
    backlog = Backlog(observed_per_s=0.1, observed_at=1.0)
    assert backlog.rate(FAST, now=1.1) == pytest.approx(100.0)


def test_a_rate_that_lasts_for_seconds_is_no_stall_and_the_learned_one_does_not_count() -> None:
    # Regression: a thousand times faster jobs had been learned from first, a tenth of their rate was taken for the least that
    # workers do, and at three times the capacity two of three admitted jobs missed their deadline.
    learned = SlotCapacity(ready_slots=1, per_s=10_000.0, latency_s={1: 0.0001, 4: 0.2}, full_per_s=10_000.0)
    backlog = Backlog()
    for tick in range(17):
        now = 0.25 * tick
        assert not 2 <= tick <= 12 or backlog.rate(learned, now) == 1_000.0
        backlog.record_stats(stats(now, depth=40, ended=5 * tick), now, batch_size=4)
    assert backlog.rate(learned, 4.0) == pytest.approx(20.0)
    with pytest.raises(DeadlineUnlikely):
        admit(backlog, learned, 4.0, deadline_s=1.0, max_depth=1_000)


def test_slow_batches_are_watched_for_several_of_their_own_length() -> None:
    slow = SlotCapacity(ready_slots=1, per_s=4.0, latency_s={4: 1.0}, full_per_s=4.0)
    backlog = Backlog()
    for tick in range(13):
        backlog.record_stats(stats(0.25 * tick, depth=40, ended=4 * (tick // 4)), 0.25 * tick, batch_size=4)
    assert backlog.sustained(slow, 3.0) == 0.0
    for tick in range(13, 18):
        backlog.record_stats(stats(0.25 * tick, depth=40, ended=4 * (tick // 4)), 0.25 * tick, batch_size=4)
    assert backlog.sustained(slow, 4.25) == pytest.approx(4.0)


def test_a_store_that_came_back_without_its_counters_tells_no_rate_below_zero() -> None:
    # Regression: the count of ended jobs fell, and the predicted wait was negative, so every job was admitted.
    learned = SlotCapacity(ready_slots=1, per_s=20.0, latency_s={4: 0.2}, full_per_s=20.0)
    backlog = Backlog()
    for tick in range(17):
        ended = 1_000 + 5 * tick if tick < 16 else 0
        backlog.record_stats(stats(0.25 * tick, depth=40, ended=ended), 0.25 * tick, batch_size=4)
    assert backlog.sustained(learned, 4.0) == 0.0
    assert backlog.rate(learned, 4.0) > 0.0


def test_what_was_observed_counts_from_the_last_time_the_queue_ran_empty() -> None:
    backlog = Backlog()
    for tick in range(17):
        depth = 0 if tick == 8 else 40
        backlog.record_stats(stats(0.25 * tick, depth=depth, ended=5 * tick), 0.25 * tick, batch_size=4)
    assert backlog.sustained(FAST, 4.0) == 0.0


def test_while_a_model_reloads_the_time_until_its_queue_is_empty_is_not_known() -> None:
    """Each look halved the observed rate: "44519 d 15 h to empty the queue", and autoscalers read the same figure."""
    backlog = Backlog(observed_per_s=200.0, observed_at=0.0)
    for look in range(40):
        backlog.record_stats(stats(100.0 + look / 4, depth=500, ended=1_000), look / 4, batch_size=8)
    assert backlog.rate(SlotCapacity(), 9.75) == 0.0
    assert eta_s(500, backlog, SlotCapacity(), 9.75) is None
    admit(backlog, SlotCapacity(), 9.75, deadline_s=60.0, max_depth=10_000)
    assert backlog.rate(FAST, 9.75) == 100.0, "ready again"


def test_an_observed_rate_is_forgotten_after_two_seconds() -> None:
    backlog = Backlog(observed_per_s=200.0, observed_at=1.0)
    assert backlog.rate(FAST, now=4.0) == FAST.per_s


def test_a_job_that_cannot_end_in_time_is_refused() -> None:
    backlog = Backlog(depth=300, leased=64, depth_at=5.0, stats_at=5.0)
    with pytest.raises(DeadlineUnlikely, match=r"about 300 jobs waiting") as refused:
        admit(backlog, FAST, 5.0, deadline_s=0.2, max_depth=10_000)
    assert refused.value.retry_after_s == pytest.approx(0.3)


def test_a_job_that_can_end_in_time_is_admitted() -> None:
    backlog = Backlog(depth=100, leased=32, depth_at=5.0, stats_at=5.0)
    admit(backlog, FAST, 5.0, deadline_s=0.2, max_depth=10_000)


def test_an_empty_queue_admits_even_when_one_run_takes_longer_than_the_deadline() -> None:
    """Otherwise a model slower than its callers' deadlines would get no jobs, and its latency would never be learned anew."""
    slow = SlotCapacity(1, 1.0, {1: 1.0}, 1.0)
    admit(Backlog(), slow, 5.0, deadline_s=0.2, max_depth=10)


def test_nothing_is_refused_on_time_while_no_rate_is_known() -> None:
    backlog = Backlog(depth=5_000, depth_at=5.0, stats_at=5.0)
    admit(backlog, SlotCapacity(), 5.0, deadline_s=0.2, max_depth=10_000)


def test_a_full_queue_is_refused_without_asking_the_store() -> None:
    backlog = Backlog(depth=10, depth_at=5.0, stats_at=5.0)
    with pytest.raises(QueueFull, match="the limit is 10"):
        admit(backlog, SlotCapacity(), 5.0, deadline_s=60.0, max_depth=10)


def test_a_stale_memory_of_a_full_queue_is_left_to_the_store() -> None:
    backlog = Backlog(depth=10, depth_at=5.0, stats_at=5.0)
    admit(backlog, SlotCapacity(), 5.5, deadline_s=60.0, max_depth=10)


def test_the_prediction_counts_those_before_and_the_own_batch() -> None:
    backlog = Backlog(depth=100, leased=32, depth_at=5.0, stats_at=5.0)
    assert predicted_s(backlog, FAST, 5.0) == pytest.approx(132 / 1_000 + 0.021)


def test_the_line_of_another_owner_counts_no_further_than_its_turns() -> None:
    backlog = Backlog(depth=10_000, depth_at=5.0, stats_at=5.0, open={"flood": 9_995, "b": 5})
    assert backlog.jobs_before_new("b", 10_000) == 5 + 6
    assert backlog.jobs_before_new("new", 10_000) == 2
    assert backlog.jobs_before_new("flood", 10_000) == 9_995 + 5
    assert backlog.jobs_before_new("", 10_000) == 10_000
    admit(backlog, FAST, 5.0, deadline_s=1.0, max_depth=20_000, owner="b")
    with pytest.raises(DeadlineUnlikely):
        admit(backlog, FAST, 5.0, deadline_s=1.0, max_depth=20_000, owner="flood")


def test_an_owner_alone_waits_for_all_that_wait() -> None:
    """The open jobs of an owner are as old as the last poll, while the depth comes from the last submit."""
    assert Backlog(open={"a": 3}).jobs_before_new("a", 50) == 50


def test_an_estimate_for_a_waiting_job_needs_a_known_rate() -> None:
    assert eta_s(10, Backlog(), SlotCapacity(), 5.0) is None
    assert eta_s(10, Backlog(), FAST, 5.0) == pytest.approx(0.010 + 0.021)


def test_at_a_fifth_above_capacity_nearly_all_admitted_jobs_end_in_time() -> None:
    """An open loop against one worker of 5 ms + 0.5 ms per item, batches of 32, deadline 200 ms."""
    learned = {1: 0.0055, 2: 0.006, 4: 0.007, 8: 0.009, 16: 0.013, 32: 0.021}
    capacity = SlotCapacity(1, 32 / 0.021, learned, 32 / 0.021)
    late, done, refused = simulate(capacity, rate=1.2 * capacity.per_s, deadline_s=0.2, seconds=5.0)
    assert late <= 0.01 * done
    assert done / 5.0 >= 0.9 * capacity.per_s
    assert refused > 0


def simulate(capacity: SlotCapacity, *, rate: float, deadline_s: float, seconds: float) -> tuple[int, int, int]:
    """Count the late, done and refused jobs of a worker that always takes all waiting jobs, at most 32."""
    backlog, queue, running = Backlog(), list[float](), list[float]()
    late = done = refused = 0
    free_at = 0.0
    for step in range(int(seconds * rate)):
        now = step / rate
        while free_at <= now:
            done += len(running)
            late += sum(free_at - came > deadline_s for came in running)
            running, queue = queue[:32], queue[32:]
            if not running:
                break
            free_at += capacity.batch_s(len(running) - 1)
        if backlog.is_stale(now):
            backlog.record_stats(stats(now, depth=len(queue), ended=done, leased=len(running)), now, batch_size=32)
        try:
            admit(backlog, capacity, now, deadline_s=deadline_s, max_depth=10_000)
        except Overloaded:
            refused += 1
            continue
        queue.append(now)
        free_at = max(free_at, now) if not running else free_at
        backlog.record_submit(len(queue), now)
    return late, done, refused


def test_jobs_that_are_cancelled_do_not_count_as_work_done() -> None:
    """Regression: after a client cancelled a few of a million waiting jobs, the gateway predicted a wait of days."""
    backlog = Backlog()
    backlog.record_stats(QueueStats("m", 100.0, ready={0: 1_000_000}), 10.0, batch_size=8)
    backlog.record_stats(QueueStats("m", 101.0, ready={0: 999_990}, ended={"cancelled": 10}), 11.0, batch_size=8)
    assert backlog.rate(SlotCapacity(), 11.0) == 0.0


def test_jobs_that_wait_for_their_start_stand_before_nobody() -> None:
    backlog = Backlog()
    open_jobs, planned = {"planner": 1_000, "flood": 500, "c": 1}, {"planner": 1_000, "c": 1}
    backlog.record_stats(replace(stats(1.0, depth=500, ended=0), open=open_jobs, planned=planned), now=1.0, batch_size=8)
    assert backlog.jobs_before_new("planner", 500) == 1
    assert backlog.jobs_before_new("newcomer", 500) == 1


def test_a_version_that_is_unloaded_has_the_slot_that_its_next_job_starts() -> None:
    info = ScalingInfo(0, 2, 2, 0, start_s=3.0, latency_s={1: 0.1, 4: 0.2})
    found = on_demand(SlotCapacity(), [], [info])
    assert (found.is_served, found.ready_slots, found.start_s) == (True, 0, 3.0)
    assert eta_s(0, Backlog(), found, 0.0) == pytest.approx(3.1)
    assert eta_s(20, Backlog(), found, 0.0) == pytest.approx(3.0 + 20 / 15.0 + 0.2, rel=0.1)
    full = on_demand(SlotCapacity(), [], [replace(info, most=0)])
    assert full.start_s == 3.0 + ROOM_COMES_S


def test_a_version_that_cannot_be_loaded_or_has_slots_or_is_nobodys_is_not_on_demand() -> None:
    info, failed = ScalingInfo(0, 2, 2, 0), SlotInfo("m", "1", "failed")
    assert not on_demand(SlotCapacity(), [failed], [info]).is_served
    assert not on_demand(SlotCapacity(), [], []).is_served
    ready = SlotCapacity(2)
    assert on_demand(ready, [], [info]) is ready
    assert on_demand(SlotCapacity(), [], [info]).start_s == UNKNOWN_START_S
