from __future__ import annotations

from penstock.broker.records import Claim, ClaimedJob
from penstock.job import Call, JobId, Payload, Priority
from penstock.workers.slot.child.in_flight import LaneProgress
from penstock.workers.slot.feeds import ShardLane

ID, OTHER = JobId("0" * 26, "m"), JobId("1" * 26, "m")
JOB = ClaimedJob(ID, "t", Payload("x"), Priority.BULK, 0.0, 1.0, 1, 0, Call.SHARD)
NEVER = float("inf")


def lane(in_line: int) -> ShardLane:
    made = ShardLane()
    made.note(Claim(shards=in_line))
    return made


def test_nothing_is_asked_for_where_nothing_stands_in_line() -> None:
    assert lane(0).ask_at(in_child=0, peers=0) == NEVER


def test_a_slot_holds_two_at_most() -> None:
    assert lane(9).ask_at(in_child=1, peers=0) < 0.0
    assert lane(9).ask_at(in_child=2, peers=0) == NEVER


def test_every_slot_has_one_before_any_has_two() -> None:
    assert lane(3).ask_at(in_child=0, peers=3) < 0.0
    assert lane(3).ask_at(in_child=1, peers=3) == NEVER
    assert lane(4).ask_at(in_child=1, peers=3) < 0.0


def test_after_a_vain_question_it_waits_a_little() -> None:
    asking = lane(1)
    asking.on_claim(Claim(shards=1), 10.0)
    assert 10.0 < asking.ask_at(in_child=0, peers=0) < 10.2
    asking.on_claim(Claim((JOB,), "bulk", shards=1), 11.0)
    assert asking.ask_at(in_child=1, peers=0) < 0.0


def test_a_shard_that_advances_is_reported_once_and_so_is_the_one_behind_it() -> None:
    progress = LaneProgress()
    progress.note({ID: 0, OTHER: 0})
    assert progress.moved() == (ID, OTHER)
    assert progress.moved() == ()
    progress.note({ID: 256, OTHER: 0})
    assert progress.moved() == (ID, OTHER)


def test_a_shard_that_stands_still_is_not_reported() -> None:
    progress = LaneProgress()
    progress.note({ID: 256})
    progress.moved()
    progress.note({ID: 256})
    assert progress.moved() == ()
