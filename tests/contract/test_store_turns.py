"""Owners take turns: in a band each owner gets one job per turn, however long its line is; one owner's jobs go by deadline."""

from __future__ import annotations

from penstock.job import JobId, JobState, Priority
from tests.contract.model_queue import ModelQueue
from tests.eventually import eventually


def served(queue: ModelQueue, *, limit: int = 1, times: int = 1, worker: str = "w1") -> list[str]:
    """Claim `times` times, and return the owners of the claimed jobs in order."""
    jobs = [job.id for _ in range(times) for job in queue.claim(worker, limit=limit).jobs]
    return [queue.read(job).owner for job in jobs]


def flood(queue: ModelQueue, owner: str, count: int, priority: Priority = Priority.INTERACTIVE) -> list[JobId]:
    return [answer.id for answer in queue.store.submit([queue.new(owner=owner, priority=priority) for _ in range(count)])]


def test_a_flood_of_one_owner_does_not_hold_up_another(queue: ModelQueue) -> None:
    flood(queue, "a", 200)
    flood(queue, "b", 5)
    assert served(queue, times=10) == ["a", "b"] * 5
    assert served(queue, times=3) == ["a"] * 3


def test_a_batch_holds_as_many_of_each_owner_and_fills_up_with_those_who_have_more(queue: ModelQueue) -> None:
    flood(queue, "a", 20)
    flood(queue, "b", 2)
    assert served(queue, limit=8) == ["a", "b", "a", "b", "a", "a", "a", "a"]


def test_an_owners_own_jobs_go_by_deadline(queue: ModelQueue) -> None:
    late, soon = queue.submit(owner="a", deadline_s=90.0), queue.submit(owner="a", deadline_s=30.0)
    queue.submit(owner="b", deadline_s=60.0)
    middle = queue.submit(owner="a", deadline_s=60.0)
    jobs = [job.id for job in queue.claim().jobs if queue.read(job.id).owner == "a"]
    assert jobs == [soon, middle, late]


def test_the_band_goes_before_the_turn(queue: ModelQueue) -> None:
    flood(queue, "a", 2, Priority.BULK)
    flood(queue, "b", 3)
    assert served(queue, limit=8) == ["b", "b", "b", "a", "a"]


def test_bulk_jobs_take_turns_among_themselves(queue: ModelQueue) -> None:
    flood(queue, "a", 10, Priority.BULK)
    flood(queue, "b", 2, Priority.BULK)
    assert served(queue, times=5) == ["a", "b", "a", "b", "a"]


def test_the_bulk_jobs_of_owners_get_their_turn_behind_a_steady_interactive_load(queue: ModelQueue) -> None:
    [bulk] = flood(queue, "a", 1, Priority.BULK)
    flood(queue, "b", 40)
    assert any(bulk in [job.id for job in queue.claim(limit=2).jobs] for _ in range(16))


def test_a_newcomer_waits_for_one_job_of_each_other_owner(queue: ModelQueue) -> None:
    flood(queue, "a", 5)
    flood(queue, "b", 5)
    assert served(queue) == ["a"]
    flood(queue, "c", 2)
    assert served(queue, times=6) == ["b", "a", "c", "b", "a", "c"]


def test_an_owner_who_comes_and_goes_gets_no_more_than_one_who_stays(queue: ModelQueue) -> None:
    flood(queue, "b", 10)
    [mine] = flood(queue, "a", 1)
    seen = []
    for _ in range(8):
        seen += served(queue)
        if queue.state(mine) is not JobState.QUEUED:
            [mine] = flood(queue, "a", 1)
    assert seen == ["b", "a"] * 4


def test_many_owners_get_one_job_each_before_anybody_gets_a_second(queue: ModelQueue) -> None:
    owners = [f"o{n}" for n in range(9)]
    for owner in owners:
        flood(queue, owner, 3)
    first = served(queue, limit=4, times=2) + served(queue)
    assert sorted(first) == owners
    assert sorted(served(queue, limit=4, times=2) + served(queue)) == owners


def test_owners_whose_jobs_have_gone_do_not_keep_others_from_being_found(queue: ModelQueue) -> None:
    for owner in "abcdefghij":
        for job in flood(queue, owner, 1):
            queue.store.cancel(job, owner=owner)
    flood(queue, "z", 1)
    assert served(queue) == ["z"]


def test_jobs_of_nobody_take_turns_with_those_of_owners(queue: ModelQueue) -> None:
    flood(queue, "", 20)
    flood(queue, "a", 3)
    assert served(queue, times=6) == ["a", "", "a", "", "a", ""]


def test_jobs_of_nobody_alone_leave_no_trace_of_turns(queue: ModelQueue) -> None:
    queue.submit()
    queue.bulk()
    queue.submit(deadline_s=5.0)
    queue.claim(limit=1, min_slack_s=10.0)
    assert queue.dump().turns == {}


def test_a_position_counts_the_jobs_of_the_same_owner(queue: ModelQueue) -> None:
    flood(queue, "a", 20)
    first, second = flood(queue, "b", 2)
    assert [queue.read(job).position for job in (first, second)] == [0, 1]


def test_jobs_of_owners_are_counted_together(queue: ModelQueue) -> None:
    flood(queue, "a", 2)
    flood(queue, "b", 3, Priority.BULK)
    queue.submit()
    stats = queue.store.stats(queue.name)
    assert (stats.ready, stats.depth) == ({0: 3, 6: 0, 9: 3}, 6)


def test_a_job_of_an_owner_that_would_force_a_tiny_batch_steps_aside_in_its_own_line(queue: ModelQueue) -> None:
    tight = queue.submit(owner="a", deadline_s=5.0)
    roomy = queue.submit(owner="b", deadline_s=60.0)
    claim = queue.claim(limit=1, min_slack_s=10.0)
    assert ([job.id for job in claim.jobs], claim.stepped_over) == ([roomy], 1)
    assert [job.id for job in queue.claim().jobs] == [tight]


def test_a_job_of_an_owner_past_its_deadline_ends_wherever_it_is_met(queue: ModelQueue) -> None:
    met, swept = queue.submit(owner="a", deadline_s=0.0), queue.submit(owner="b", deadline_s=1.0)
    live = queue.submit(owner="a")
    claim = queue.claim(limit=1)
    assert ([job.id for job in claim.jobs], claim.expired, queue.state(met)) == ([live], 1, JobState.EXPIRED)
    eventually(lambda: queue.store.sweep(queue.name).expired)
    assert queue.state(swept) is JobState.EXPIRED


def test_a_job_that_comes_back_takes_its_old_place_in_its_owners_line(queue: ModelQueue) -> None:
    first, second = flood(queue, "a", 2)
    flood(queue, "b", 2)
    job = queue.take()
    assert job.id == first
    queue.release(job)
    assert [item.id for item in queue.claim().jobs if queue.read(item.id).owner == "a"] == [first, second]
