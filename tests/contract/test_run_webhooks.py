"""Whoever ends a run with a webhook leaves its event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

from penstock.broker.contract import DropStatus, ReopenStatus
from penstock.broker.run_contract import RunChange
from penstock.broker.store.run_ops import RUNS_KEY
from penstock.broker.store.runs import RunStore
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.contract import AttemptEnd, EventOutcome, EventSettled, EventState
from penstock.run import RunSpec, RunState
from tests.contract.hooked import HOOK, BlockingOutbox, OutboxDeliverer

SPEC = RunSpec(model="square", input="in.jsonl", output="out.jsonl")
LATE = RunSpec(model="square", input="in.jsonl", output="out.jsonl", deadline_s=0.001)
REFUSED = AttemptEnd(EventOutcome.REFUSED, "no such host")


class HookedRuns(OutboxDeliverer):
    """The runs of a store, and their outbox."""

    def __init__(self, runs: RunStore, outbox: BlockingOutbox) -> None:
        super().__init__(outbox)
        self.runs = runs
        self._names = (f"r{number}" for number in count())

    def create(self, spec: RunSpec = SPEC, owner: str = "ann") -> str:
        return self.runs.create(next(self._names), spec, owner=owner, words=HOOK.word_of(owner)).run.id

    def ended(self, state: RunState = RunState.COMPLETED) -> str:
        run = self.create()
        self.runs.take(run, "d1", lease_s=60.0)
        self.runs.update(run, "d1", RunChange(state=state), lease_s=0.0)
        return run

    def state(self, run: str) -> EventState:
        return self.outbox.logs([run])[run].state


def on_redis(store: RedisStore) -> HookedRuns:
    return HookedRuns(RunStore(store), BlockingOutbox(store, RUNS_KEY))


@pytest.fixture
def hooked(fresh_redis: str) -> Iterator[HookedRuns]:
    with closing(RedisStore(fresh_redis)) as store:
        yield on_redis(store)


@pytest.mark.parametrize("state", [state for state in RunState if state.final])
def test_every_end_of_a_run_leaves_its_event(hooked: HookedRuns, state: RunState) -> None:
    run = hooked.ended(state)
    event = hooked.take_one()
    assert (event.id, event.event, event.owner, event.url, event.number) == (run, f"run.{state.value}", "ann", HOOK.url, 1)
    assert (hooked.settle(event), hooked.take(), hooked.state(run)) == (EventSettled.OK, [], EventState.DELIVERED)


def test_a_run_that_its_drivers_do_not_survive_has_its_event(hooked: HookedRuns) -> None:
    run = hooked.create()
    for driver in ("d1", "d2", "d3", "d4"):
        hooked.runs.take(run, driver, lease_s=0.0)
    assert hooked.take_one().event == "run.failed"


def test_a_queued_run_that_is_cancelled_or_too_late_has_its_event(hooked: HookedRuns) -> None:
    cancelled, _ = hooked.create(), hooked.create(LATE)
    hooked.runs.ask_cancel(cancelled)
    while len(hooked.runs.look(10)):
        pass
    assert sorted(event.event for event in hooked.take()) == ["run.cancelled", "run.expired"]


def test_a_run_without_a_webhook_or_that_has_not_ended_has_no_event(hooked: HookedRuns) -> None:
    run = hooked.runs.create("plain", SPEC).run.id
    hooked.runs.ask_cancel(run)
    hooked.create()
    assert hooked.outbox.take().next_in_s is None
    assert hooked.outbox.logs(["plain"]) == {}


def test_a_run_that_is_opened_again_takes_its_undelivered_event_back_and_ends_with_another(hooked: HookedRuns) -> None:
    run = hooked.ended(RunState.FAILED)
    first = hooked.take_one(lease_s=60.0)
    assert hooked.runs.reopen(run) is ReopenStatus.REOPENED
    assert hooked.settle(first) is EventSettled.OK
    assert (hooked.take(), hooked.state(run)) == ([], EventState.PENDING)
    hooked.runs.ask_cancel(run)
    second = hooked.take_one()
    assert (second.event, second.number > first.number) == ("run.cancelled", True)


def test_a_given_up_event_of_a_run_can_be_sent_again_and_leaves_with_the_run(hooked: HookedRuns) -> None:
    run, other = hooked.ended(), hooked.ended()
    for event in hooked.take():
        assert hooked.settle(event, REFUSED) is EventSettled.UNDELIVERED
    assert set(hooked.outbox.undelivered(owner="ann")) == {run, other}
    assert hooked.outbox.send_again([run]) == 1
    assert hooked.take_one().id == run
    assert hooked.runs.drop(other) is DropStatus.DROPPED
    assert (hooked.outbox.undelivered(), hooked.outbox.logs([other])) == ([], {})


def test_an_old_run_stays_until_its_event_was_delivered(hooked: HookedRuns) -> None:
    run = hooked.ended()
    assert [found.id for found in hooked.runs.page(keep_s=0.0).runs] == [run]
    hooked.settle(hooked.take_one())
    assert hooked.runs.read(run) is not None


def test_an_old_run_whose_event_was_delivered_is_forgotten(hooked: HookedRuns) -> None:
    run = hooked.ended()
    hooked.settle(hooked.take_one())
    assert hooked.runs.page(keep_s=-1.0).runs == []
    assert hooked.outbox.logs([run]) == {}
