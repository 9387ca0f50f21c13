"""A random walk over jobs with webhooks: their events are taken, settled and sent again beside all else that befalls the jobs.

The oracle knows no events. The walk expects of each step what the dump before it says, and I5 after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule

from penstock.broker.store.ops import prefix
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.contract import AttemptEnd, DueEvent, EventOutcome, EventSettled, EventState, TakeLimits
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import JobId
from tests.contract.dumps import Dump
from tests.contract.event_dumps import LISTED, SENDING, StoredEvent
from tests.contract.hooked import BlockingOutbox
from tests.contract.model_queue import JobStore
from tests.integration.store_machine import StoreMachine, now_or_never

# What is wanted of the events of one job after the other, and how many an owner may have undelivered.
HOOKS = [("sfcx", 100), None, ("sfR", 100), ("cx", 2)]
# Failures in a row close an endpoint for a time that is not that of the test, so there are few.
FEWER_THAN_CLOSE = 4
TAKE_MOST = 64
SENT = (EventState.DELIVERED, EventState.UNDELIVERED, EventState.DISMISSED)


class EventMachine(StoreMachine):
    """`kept` are the events under a lease that outlives the test, `later` those that are tried again after it. A number of a
    job's events names one of them for ever.
    """

    jobs = StoreMachine.jobs
    events = Bundle("events")

    def __init__(self, url: str, connect: Callable[[], RedisStore] | None = None) -> None:
        super().__init__(url, connect)
        self.made = 0
        self.kept: set[str] = set()
        self.later: set[str] = set()
        self.failures: Counter[str] = Counter()
        self.named: dict[tuple[str, int], str] = {}
        self.undelivered: set[str] = set()

    @property
    def outbox(self) -> BlockingOutbox:
        return BlockingOutbox(self.store, prefix(self.model))

    def webhook_of(self, job: JobId) -> Webhook | None:
        """Give each job an endpoint of its own: within one, events wait for each other."""
        hook = HOOKS[self.made % len(HOOKS)]
        self.made += 1
        return hook and Webhook(f"https://{job.serial}.example/", *hook)

    def compare(self, answer: Any, ask: Callable[[JobStore], Any]) -> None:
        """There is nothing to compare with."""

    def compare_dump(self, dump: Dump) -> None:
        """There is nothing to compare with."""

    def stored(self, event_id: str) -> StoredEvent | None:
        return self.dump().events.get(event_id)

    def due(self) -> set[str]:
        """Return the events that the next take must bring."""
        events = self.dump().events.items()
        waiting = {one for one, stored in events if stored.event and stored.state is EventState.PENDING}
        return waiting - self.kept - self.later

    @rule(target=events, lease_s=now_or_never)
    def take_events(self, lease_s: float) -> Any:
        before, due = self.dump(), self.due()
        taken = self.outbox.take(TakeLimits(lease_s=lease_s, limit=TAKE_MOST)).events
        assert {event.id for event in taken} == due or len(taken) == TAKE_MOST
        for event in taken:
            stored = before.events[event.id]
            assert (event.event, event.number, event.letters) == (stored.event, stored.number, stored.letters)
            assert (event.owner, event.tries) == (before.jobs[event.id].owner, stored.tries + 1)
            assert self.named.setdefault((event.id, event.number), event.event) == event.event
        self.kept |= {event.id for event in taken if lease_s}
        return multiple(*taken)

    @rule(event=events, outcome=st.sampled_from(EventOutcome), retry_s=now_or_never, give_up_s=now_or_never)
    def settle_event(self, event: DueEvent, outcome: EventOutcome, retry_s: float, give_up_s: float) -> None:
        """Settle, then settle once more, as after a lost reply: only the last who took the event settles it, and once."""
        self.failures[event.id] += outcome is EventOutcome.AGAIN
        if outcome is EventOutcome.AGAIN and self.failures[event.id] >= FEWER_THAN_CLOSE:
            return
        stored = self.stored(event.id)
        is_held = stored is not None and SENDING in stored.places and str(stored.takes) == event.token
        end = AttemptEnd(outcome, "an answer", retry_s=retry_s)
        answer = self.outbox.settle(event, end, give_up_s=give_up_s)
        assert (answer is not EventSettled.STALE) == is_held
        if is_held:
            self.check_settled(event.id, answer, end, give_up_s)
        assert self.outbox.settle(event, end, give_up_s=give_up_s) is EventSettled.STALE

    def check_settled(self, event_id: str, answer: EventSettled, end: AttemptEnd, give_up_s: float) -> None:
        is_tried = end.outcome is EventOutcome.AGAIN and give_up_s > 0.0
        given_up = EventState.PENDING if is_tried else EventState.UNDELIVERED
        expected = EventState.DELIVERED if end.outcome is EventOutcome.DELIVERED else given_up
        stored = self.stored(event_id)
        assert stored is not None
        assert (stored.state, answer is EventSettled.UNDELIVERED) == (expected, expected is EventState.UNDELIVERED)
        assert self.outbox.logs([event_id])[event_id].attempts[-1].outcome == end.outcome.value
        self.kept.discard(event_id)
        self.later -= {event_id}
        self.later |= {event_id} if is_tried and end.retry_s else set()

    @rule(job=jobs, owner=st.sampled_from([None, "a"]))
    def send_event_again(self, job: JobId, owner: str | None) -> None:
        before = self.dump()
        stored = before.events.get(job.serial)
        may_send = stored is not None and bool(stored.event) and stored.state in SENT
        may_send = may_send and owner in (None, before.jobs[job.serial].owner)
        assert self.outbox.send_again([job.serial], owner=owner) == may_send
        if may_send:
            assert job.serial in self.due()

    @rule(job=jobs)
    def dismiss_event(self, job: JobId) -> None:
        stored = self.stored(job.serial)
        is_listed = stored is not None and stored.state is EventState.UNDELIVERED
        assert self.outbox.dismiss([job.serial]) == is_listed
        after = self.stored(job.serial)
        assert not is_listed or (after is not None and after.state is EventState.DISMISSED)

    @rule(job=jobs)
    def look_at_events(self, job: JobId) -> None:
        dump = self.dump()
        listed = sorted((one for one, stored in dump.events.items() if stored.places >= LISTED), reverse=True)
        assert self.outbox.undelivered() == listed
        assert self.outbox.undelivered(owner="a") == [one for one in listed if dump.jobs[one].owner == "a"]
        assert self.outbox.counts().undelivered == len(listed)
        stored, logs = dump.events.get(job.serial), self.outbox.logs([job.serial])
        assert {one: (log.state, log.event) for one, log in logs.items()} == (
            {job.serial: (stored.state, stored.event)} if stored else {}
        )

    @invariant()
    def a_record_stays_while_its_event_is_to_be_delivered(self) -> None:
        events = self.dump().events
        assert self.undelivered <= events.keys()
        self.undelivered = {one for one, stored in events.items() if stored.state is EventState.PENDING}
