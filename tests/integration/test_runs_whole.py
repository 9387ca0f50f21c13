"""A function of runs that fails half-way loses no run: each of its Redis commands fails once, and every one from there on.

The call may be repeated, as after a lost reply. If nobody repeats it, every run that has a record is still driven to its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis

from penstock.broker.contract import TakeStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.run_ops import RUNS_KEY
from penstock.broker.store.runs import RunStore
from penstock.extensions.webhooks.contract import AttemptEnd, EventOutcome, EventSettled, EventState
from penstock.run import Run, RunCounts, RunPart, RunSpec, RunState, part_id
from tests.contract.hooked import HOOK, BlockingOutbox, OutboxDeliverer
from tests.integration.failing_library import FailingLibrary
from tests.integration.store_scenarios import Act
from tests.integration.test_store_whole import act_and_fail

pytestmark = pytest.mark.usefixtures("redis_url")

SPEC = RunSpec(model="square", input="in.jsonl", output="out.jsonl")
DUE = RunSpec(model="square", input="in.jsonl", output="out.jsonl", deadline_s=0.001)
DONE, FAILED = RunChange(state=RunState.COMPLETED), RunChange(state=RunState.FAILED)
PARTS = [RunPart(number=number, first=0, stop=1) for number in range(2)]
NAMES = (f"n{number}" for number in itertools.count())


@pytest.fixture
def failing(redis_url: str) -> Iterator[FailingLibrary]:
    with closing(FailingLibrary(redis_url)) as library:
        yield library


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        clear(client)
        yield client
        clear(client)


def outbox_of(runs: RunStore) -> BlockingOutbox:
    return BlockingOutbox(runs.store, RUNS_KEY)


def queued(runs: RunStore, spec: RunSpec = SPEC) -> str:
    return runs.create(next(NAMES), spec, owner="a", words=HOOK.word_of("a")).run.id


def driven(runs: RunStore, driver: str = "d") -> str:
    """A run whose driver's lease has passed at once: anybody may take it."""
    run = queued(runs)
    assert runs.take(run, driver, lease_s=0.0).status is TakeStatus.TAKEN
    return run


def ended(runs: RunStore, change: RunChange = DONE) -> str:
    run = driven(runs)
    runs.update(run, "d", change, lease_s=0.0)
    return run


def old(runs: RunStore) -> str:
    """A run that is kept for nobody any more: its event was given up, and is listed."""
    run = ended(runs)
    outbox = OutboxDeliverer(outbox_of(runs))
    outbox.settle(outbox.take_one(), AttemptEnd(EventOutcome.REFUSED, "no such host"))
    return run


def create(runs: RunStore) -> Act:
    """It forgets what ended long ago as well."""
    old(runs)
    name = next(NAMES)
    return lambda: runs.create(name, DUE, owner="b", keep_s=0.0, words=HOOK.word_of("b"))


def take(runs: RunStore) -> Act:
    run = driven(runs)
    return lambda: runs.take(run, "other", lease_s=0.0)


def take_a_deadly_one(runs: RunStore) -> Act:
    run = queued(runs)
    for driver in ("d1", "d2", "d3"):
        runs.take(run, driver, lease_s=0.0)
    return lambda: runs.take(run, "d4", lease_s=0.0)


def update(runs: RunStore) -> Act:
    run = driven(runs)
    return lambda: runs.update(run, "d", RunChange(state=RunState.RUNNING, version="1"), lease_s=0.0)


def complete(runs: RunStore) -> Act:
    run = driven(runs)
    return lambda: runs.update(run, "d", DONE, lease_s=0.0)


def reopen(runs: RunStore) -> Act:
    run = ended(runs, FAILED)
    return lambda: runs.reopen(run)


def cancel(runs: RunStore) -> Act:
    run = queued(runs)
    return lambda: runs.ask_cancel(run)


def cancel_a_driven_one(runs: RunStore) -> Act:
    run = driven(runs)
    return lambda: runs.ask_cancel(run)


def whole(runs: RunStore) -> str:
    """A run that is to be split, by its driver."""
    return driven(runs, "planner")


def halved(runs: RunStore) -> str:
    """A run with two parts, of which one is driven."""
    run = whole(runs)
    runs.split(run, "planner", PARTS, RunCounts(total=2))
    runs.take(part_id(run, 0), "d", lease_s=0.0)
    return run


def split(runs: RunStore) -> Act:
    run = whole(runs)
    return lambda: runs.split(run, "planner", PARTS, RunCounts(total=2))


def take_a_part(runs: RunStore) -> Act:
    run = halved(runs)
    return lambda: runs.take(part_id(run, 1), "other", lease_s=0.0)


def complete_a_part(runs: RunStore) -> Act:
    run = halved(runs)
    return lambda: runs.update(part_id(run, 0), "d", DONE, lease_s=0.0)


def fail_a_part(runs: RunStore) -> Act:
    run = halved(runs)
    return lambda: runs.update(part_id(run, 0), "d", FAILED, lease_s=0.0)


def reopen_a_halved_one(runs: RunStore) -> Act:
    run = halved(runs)
    runs.update(part_id(run, 0), "d", FAILED, lease_s=0.0)
    return lambda: runs.reopen(run)


def cancel_a_halved_one(runs: RunStore) -> Act:
    run = halved(runs)
    return lambda: runs.ask_cancel(run)


def drop_a_halved_one(runs: RunStore) -> Act:
    run = halved(runs)
    runs.ask_cancel(run)
    return lambda: runs.drop(run)


def look(runs: RunStore) -> Act:
    """One run has lost its driver, one is past its deadline, one waits."""
    for make in (driven, queued):
        make(runs)
    queued(runs, DUE)
    return lambda: runs.look(10)


def list_them(runs: RunStore) -> Act:
    old(runs)
    queued(runs)
    return lambda: runs.page(keep_s=0.0).runs


def drop(runs: RunStore) -> Act:
    run = ended(runs)
    return lambda: runs.drop(run)


SCENARIOS: list[Callable[[RunStore], Act]] = [
    create,
    take,
    take_a_deadly_one,
    update,
    complete,
    reopen,
    cancel,
    cancel_a_driven_one,
    look,
    list_them,
    drop,
    split,
    take_a_part,
    complete_a_part,
    fail_a_part,
    reopen_a_halved_one,
    cancel_a_halved_one,
    drop_a_halved_one,
]


def clear(client: redis.Redis) -> None:
    if found := keys(client):
        client.delete(*found)


def keys(client: redis.Redis) -> list[bytes]:
    return list(client.scan_iter("ps:runs:{runs}:*", count=1_000))


def records(runs: RunStore, client: redis.Redis) -> dict[str, Run]:
    """Every run that has a record, whether a list has it or not. Parts live and end with their run."""
    names = [key.decode().rpartition(":")[2] for key in client.scan_iter("ps:runs:{runs}:run:*", count=1_000)]
    return {name: run for name in names if (run := runs.read(name)) is not None and not run.part}


def run_to_the_end(runs: RunStore) -> None:
    """As runners do: look, take, complete."""
    for driver in map(str, range(20)):
        waiting = runs.look(10)
        for run in waiting:
            if runs.take(run.id, driver, lease_s=0.0).status is TakeStatus.TAKEN:
                runs.update(run.id, driver, DONE, lease_s=0.0)
        if not waiting:
            return


def deliver_to_the_end(runs: RunStore, ended: set[str]) -> None:
    """The event of every run that has ended, and is still there, is delivered."""
    deliverer = OutboxDeliverer(outbox_of(runs))
    while events := deliverer.take(per_endpoint=100):
        for event in events:
            assert deliverer.settle(event) is EventSettled.OK
    left = {log.state for log in deliverer.outbox.logs(list(ended)).values()}
    assert left <= {EventState.DELIVERED, EventState.UNDELIVERED}


def fail_everywhere(
    failing: FailingLibrary, client: redis.Redis, scenario: Callable[[RunStore], Act], *, for_good: bool
) -> Iterator[tuple[RunStore, Act]]:
    """The runs after a failure at each command in turn, and the call that failed."""
    runs = RunStore(failing.store)
    for fail_at in itertools.count(1):
        act = scenario(runs)
        if not act_and_fail(failing, act, fail_at, for_good=for_good):
            return
        yield runs, act
        clear(client)


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_call_that_fails_at_any_command_and_is_repeated_leaves_nothing_behind(
    failing: FailingLibrary, client: redis.Redis, scenario: Callable[[RunStore], Act], for_good: bool
) -> None:
    for runs, act in fail_everywhere(failing, client, scenario, for_good=for_good):
        act()
        run_to_the_end(runs)
        assert {run.state.final for run in records(runs, client).values()} <= {True}
        deliver_to_the_end(runs, set(records(runs, client)))
        assert {run.id for run in runs.page(limit=100).runs} == records(runs, client).keys()
        assert runs.page(keep_s=-1.0).runs == []
        assert keys(client) == []


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_run_whose_call_failed_at_any_command_ends_though_nobody_repeats_the_call(
    failing: FailingLibrary, client: redis.Redis, scenario: Callable[[RunStore], Act], for_good: bool
) -> None:
    for runs, _ in fail_everywhere(failing, client, scenario, for_good=for_good):
        seen = {name: run.state for name, run in records(runs, client).items() if run.state.final}
        run_to_the_end(runs)
        now = {name: run.state for name, run in records(runs, client).items()}
        assert {name: now[name] for name in seen if name in now} == {name: seen[name] for name in seen if name in now}
        assert all(state.final for state in now.values())
        deliver_to_the_end(runs, set(now))
        assert (runs.page(keep_s=-1.0).runs, records(runs, client)) == ([], {})
