"""Owners take turns: within a band one job each, whatever the length of their lines; an owner's own jobs go by deadline."""

from __future__ import annotations

from penstock.job import JobState, Priority
from penstock.job_id import JobId
from tests.contract.desk import Desk
from tests.eventually import eventually


def served(desk: Desk, *, limit: int = 1, times: int = 1, worker: str = "w1") -> list[str]:
    """The owners of the jobs that so many claims take, in order."""
    jobs = [job.id for _ in range(times) for job in desk.claim(worker, limit=limit).jobs]
    return [desk.read(job).owner for job in jobs]


def flood(desk: Desk, owner: str, count: int, priority: Priority = Priority.INTERACTIVE) -> list[JobId]:
    return [answer.id for answer in desk.store.submit([desk.new(owner=owner, priority=priority) for _ in range(count)])]


def test_a_flood_of_one_owner_does_not_hold_up_another(desk: Desk) -> None:
    flood(desk, "a", 200)
    flood(desk, "b", 5)
    assert served(desk, times=10) == ["a", "b"] * 5
    assert served(desk, times=3) == ["a"] * 3


def test_a_batch_holds_as_many_of_each_owner_and_fills_up_with_those_who_have_more(desk: Desk) -> None:
    flood(desk, "a", 20)
    flood(desk, "b", 2)
    assert served(desk, limit=8) == ["a", "b", "a", "b", "a", "a", "a", "a"]


def test_an_owners_own_jobs_go_by_deadline(desk: Desk) -> None:
    late, soon = desk.submit(owner="a", deadline_s=90.0), desk.submit(owner="a", deadline_s=30.0)
    desk.submit(owner="b", deadline_s=60.0)
    middle = desk.submit(owner="a", deadline_s=60.0)
    jobs = [job.id for job in desk.claim().jobs if desk.read(job.id).owner == "a"]
    assert jobs == [soon, middle, late]


def test_the_band_goes_before_the_turn(desk: Desk) -> None:
    flood(desk, "a", 2, Priority.BULK)
    flood(desk, "b", 3)
    assert served(desk, limit=8) == ["b", "b", "b", "a", "a"]


def test_bulk_jobs_take_turns_among_themselves(desk: Desk) -> None:
    flood(desk, "a", 10, Priority.BULK)
    flood(desk, "b", 2, Priority.BULK)
    assert served(desk, times=5) == ["a", "b", "a", "b", "a"]


def test_the_bulk_jobs_of_owners_get_their_turn_behind_a_steady_interactive_load(desk: Desk) -> None:
    [bulk] = flood(desk, "a", 1, Priority.BULK)
    flood(desk, "b", 40)
    assert any(bulk in [job.id for job in desk.claim(limit=2).jobs] for _ in range(16))


def test_a_newcomer_waits_for_one_job_of_each_other_owner(desk: Desk) -> None:
    flood(desk, "a", 5)
    flood(desk, "b", 5)
    assert served(desk) == ["a"]
    flood(desk, "c", 2)
    assert served(desk, times=6) == ["b", "a", "c", "b", "a", "c"]


def test_an_owner_who_comes_and_goes_gets_no_more_than_one_who_stays(desk: Desk) -> None:
    flood(desk, "b", 10)
    [mine] = flood(desk, "a", 1)
    seen = []
    for _ in range(8):
        seen += served(desk)
        if desk.state(mine) is not JobState.QUEUED:
            [mine] = flood(desk, "a", 1)
    assert seen == ["b", "a"] * 4


def test_many_owners_get_one_job_each_before_anybody_gets_a_second(desk: Desk) -> None:
    owners = [f"o{n}" for n in range(9)]
    for owner in owners:
        flood(desk, owner, 3)
    first = served(desk, limit=4, times=2) + served(desk)
    assert sorted(first) == owners
    assert sorted(served(desk, limit=4, times=2) + served(desk)) == owners


def test_owners_whose_jobs_have_gone_do_not_keep_others_from_being_found(desk: Desk) -> None:
    for owner in "abcdefghij":
        for job in flood(desk, owner, 1):
            desk.store.cancel(job, owner=owner)
    flood(desk, "z", 1)
    assert served(desk) == ["z"]


def test_jobs_of_nobody_take_turns_with_those_of_owners(desk: Desk) -> None:
    flood(desk, "", 20)
    flood(desk, "a", 3)
    assert served(desk, times=6) == ["a", "", "a", "", "a", ""]


def test_jobs_of_nobody_alone_leave_no_trace_of_turns(desk: Desk) -> None:
    desk.submit()
    desk.bulk()
    desk.submit(deadline_s=5.0)
    desk.claim(limit=1, min_slack_s=10.0)
    assert desk.dump().turns == {}


def test_a_position_counts_the_jobs_of_the_same_owner(desk: Desk) -> None:
    flood(desk, "a", 20)
    first, second = flood(desk, "b", 2)
    assert [desk.read(job).position for job in (first, second)] == [0, 1]


def test_jobs_of_owners_are_counted_together(desk: Desk) -> None:
    flood(desk, "a", 2)
    flood(desk, "b", 3, Priority.BULK)
    desk.submit()
    stats = desk.store.stats(desk.model)
    assert (stats.ready, stats.depth) == ({0: 3, 6: 0, 9: 3}, 6)


def test_a_job_of_an_owner_that_would_force_a_tiny_batch_steps_aside_in_its_own_line(desk: Desk) -> None:
    tight = desk.submit(owner="a", deadline_s=5.0)
    roomy = desk.submit(owner="b", deadline_s=60.0)
    claim = desk.claim(limit=1, min_slack_s=10.0)
    assert ([job.id for job in claim.jobs], claim.stepped_over) == ([roomy], 1)
    assert [job.id for job in desk.claim().jobs] == [tight]


def test_a_job_of_an_owner_past_its_deadline_ends_wherever_it_is_met(desk: Desk) -> None:
    met, swept = desk.submit(owner="a", deadline_s=0.0), desk.submit(owner="b", deadline_s=1.0)
    live = desk.submit(owner="a")
    claim = desk.claim(limit=1)
    assert ([job.id for job in claim.jobs], claim.expired, desk.state(met)) == ([live], 1, JobState.EXPIRED)
    eventually(lambda: desk.store.sweep(desk.model).expired)
    assert desk.state(swept) is JobState.EXPIRED


def test_a_job_that_comes_back_takes_its_old_place_in_its_owners_line(desk: Desk) -> None:
    first, second = flood(desk, "a", 2)
    flood(desk, "b", 2)
    job = desk.take()
    assert job.id == first
    desk.release(job)
    assert [item.id for item in desk.claim().jobs if desk.read(item.id).owner == "a"] == [first, second]
