"""Lists of runs: their pages, whose runs they show, and how many runs of an owner may be open."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import msgspec
import redis

from penstock.broker.store import run_ops
from penstock.broker.store.ops import Operation
from penstock.broker.store.runs import RunStore
from penstock.errors import QuotaSpent
from penstock.run import RunState
from tests.contract.test_runs import SPEC, create, ended, read, runs

__all__ = ["runs"]


def test_the_list_pages_through_all_newest_first(runs: RunStore) -> None:
    made = [create(runs) for _ in range(7)]
    assert set(made) == {run.id for run in runs.page().runs}
    moments = [run.created_at for run in runs.page().runs]
    assert moments == sorted(moments, reverse=True)
    seen: list[str] = []
    while page := runs.page(after=seen[-1] if seen else "", limit=3).runs:
        seen += [run.id for run in page]
    assert seen == [run.id for run in runs.page().runs]
    assert runs.page(after="nowhere").runs == []


def test_the_list_tells_owners_and_states_apart(runs: RunStore) -> None:
    mine, theirs, over = create(runs, owner="ann"), create(runs, owner="bob"), ended(runs)
    assert [run.id for run in runs.page(owner="ann").runs] == [mine]
    assert [run.id for run in runs.page(owner="").runs] == [over]
    assert {run.id for run in runs.page(states=[RunState.QUEUED]).runs} == {mine, theirs}
    assert [run.id for run in runs.page(states=[RunState.QUEUED], owner="bob").runs] == [theirs]
    assert {run.id for run in runs.page(states=[RunState.QUEUED, RunState.COMPLETED]).runs} == {mine, theirs, over}
    assert [run.id for run in runs.page(states=[RunState.COMPLETED]).runs] == [over]
    assert runs.page(states=[RunState.FAILED]).runs == []


def test_ended_runs_are_forgotten_in_time_and_others_never(runs: RunStore) -> None:
    live, over = create(runs), ended(runs)
    assert {run.id for run in runs.page().runs} == {live, over}
    assert [run.id for run in runs.page(keep_s=0).runs] == [live]
    assert runs.read(over) is None
    another = ended(runs)
    runs.create("new", SPEC, keep_s=0)
    assert runs.read(another) is None


def test_more_runs_than_one_look_at_the_index_are_all_found(runs: RunStore) -> None:
    made = {create(runs, owner="ann" if number % 40 == 0 else "") for number in range(230)}
    assert {run.id for run in runs.page(limit=500).runs} == made
    assert len(runs.page(owner="ann", states=[RunState.QUEUED], limit=500).runs) == 6


def test_one_call_of_a_list_looks_at_500_runs_and_says_where_it_goes_on(runs: RunStore) -> None:
    """Regression: a list with a filter read 5,000 records, which took 141 ms of the store."""
    tagged = [runs.create(f"a{number}", msgspec.structs.replace(SPEC, tags=("rare",)), owner="ann").run.id for number in (1, 2)]
    for number in range(1_100):
        runs.create(f"r{number:04}", SPEC, owner="ann")
    found, after, calls = list[str](), "", 0
    while calls == 0 or after:
        calls += 1
        page = runs.page(owner="ann", text='"rare"', after=after, limit=20)
        found, after = found + [run.id for run in page.runs], page.next_after
    assert (found, calls) == (tagged[::-1], 3)
    assert len(runs.page(limit=1_000).runs) == 500


def test_a_page_of_runs_ends_where_its_list_ends(runs: RunStore) -> None:
    made = [create(runs, owner="ann") for _ in range(4)]
    first = runs.page(owner="ann", limit=2)
    assert [run.id for run in first.runs] == sorted(made, key=lambda run: (read(runs, run).created_at, run))[:1:-1]
    second = runs.page(owner="ann", limit=2, after=first.next_after)
    assert (len(second.runs), second.next_after) == (2, "")


def is_refused(runs: RunStore, asked: Operation[Any]) -> bool:
    try:
        runs.run(asked)
    except QuotaSpent as refusal:
        return "runs that have not ended" in refusal.message
    return False


def test_an_owner_has_so_many_runs_that_have_not_ended_and_no_more(runs: RunStore) -> None:
    """Regression: the number was read and then the run created, so two creations at once passed the limit."""
    made = [runs.create(f"r{number}", SPEC, owner="ann", most=2).run.id for number in range(2)]
    assert is_refused(runs, run_ops.create("r2", SPEC, owner="ann", most=2))
    assert is_refused(runs, run_ops.room("ann", 2))
    assert runs.read("r2") is None
    assert not runs.create("r1", SPEC, owner="ann", most=2).new, "a repeat is no other run"
    assert runs.create("b", SPEC, owner="bob", most=2).new
    runs.ask_cancel(made[0])
    assert not is_refused(runs, run_ops.room("ann", 2))
    assert runs.create("r2", SPEC, owner="ann", most=2).new
    runs.reopen(made[0])
    assert is_refused(runs, run_ops.create("r3", SPEC, owner="ann", most=3))


def test_runs_that_were_created_before_owners_had_lists_of_theirs_count(runs: RunStore, fresh_redis: str) -> None:
    create(runs, owner="ann")
    done = runs.create("done", SPEC, owner="ann").run.id
    with closing(redis.Redis.from_url(fresh_redis)) as client:
        client.delete("ps:runs:{runs}:live:ann", "ps:runs:{runs}:owned")
    runs.ask_cancel(done)
    assert len(runs.page(owner="ann", states=[RunState.QUEUED]).runs) == 1
    assert is_refused(runs, run_ops.create("another", SPEC, owner="ann", most=1))


def test_what_a_failed_call_left_takes_no_place_of_an_owner(runs: RunStore, fresh_redis: str) -> None:
    with closing(redis.Redis.from_url(fresh_redis)) as client:
        runs.create("first", SPEC, owner="ann")
        runs.run(run_ops.room("ann", 9))
        client.zadd("ps:runs:{runs}:live:ann", {"never-stored": 1.0})
    assert runs.create("second", SPEC, owner="ann", most=2).new
