"""One slot: one thread, one child, one loop that claims batches, hands them over and settles them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from selectors import EVENT_READ, DefaultSelector

import structlog

from penstock.broker.contract import ReleaseReason
from penstock.failpoints import failpoint
from penstock.job import JobId
from penstock.model_spec import ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import INPUT_MISSING, INPUT_MISSING_CODE, ItemReports, Ready
from penstock.workers.slot.batch import Batch, unrun_stamp
from penstock.workers.slot.batcher import IDLE_POLL_S
from penstock.workers.slot.child.events import (
    BatchEnded,
    BatchLost,
    BatchRan,
    ChildExited,
    ChildReady,
    ChildUnloadable,
    Event,
    HandlerMeasured,
    ItemsSaid,
)
from penstock.workers.slot.child.in_flight import LaneProgress
from penstock.workers.slot.child.manager import ChildManager
from penstock.workers.slot.child.slot_child import NewChild, SlotChild
from penstock.workers.slot.claims import Claims, Inputs
from penstock.workers.slot.context import SlotContext
from penstock.workers.slot.facts import SlotFacts
from penstock.workers.slot.feeds import ClaimFeed, Lease
from penstock.workers.slot.reports import Reports
from penstock.workers.slot.settlement import RETRY_MOST_S, SLOT_FAULT, Verdicts

log = structlog.get_logger(__name__)
LEASE_LOST = "lease_lost"
LEASE_LAPSED = "lease_lapsed"
_WAKER = "waker"
_SETTLE_LATE_S = 5.0


class Slot:
    """`run` is the work of the slot's thread. Other threads may call what stands under "From other threads"."""

    def __init__(
        self,
        spec: ModelSpec,
        pin: Pin,
        context: SlotContext,
        *,
        name: str,
        new_child: NewChild = ChildManager,
        inputs: type[Inputs] = Inputs,
    ) -> None:
        self.spec, self.name, self.pin = spec, name, pin
        self._context = context
        self._selector = DefaultSelector()
        self._waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        limit = 0 if "max_batch_size" in context.declared_policy else spec.policy.max_batch_size
        self._slot_child: SlotChild = new_child(spec, pin, self._selector, context.locate, max_batch_size=limit)
        self.facts = SlotFacts(spec, pin, self._slot_child)
        self._claims = Claims(spec, context, self._selector, self.facts.latency, self._slot_child, name=name, device=pin.device)
        self._feeds, self._debts = self._claims.feeds, self._claims.debts
        self._batcher = self._claims.batcher
        self._verdicts = Verdicts(spec, self._debts, context.observers)
        self._inputs = inputs(context.blobs)
        self.progress = LaneProgress()
        self._reports = Reports()
        self._has_lapsed = self._is_draining = self._is_disowned = self._is_reload_due = self._is_over = False
        self._fenced = ""
        self._drain_by: float | None = None
        self.turned_at = time.monotonic()

    # From other threads.

    def drain(self, *, by: float) -> None:
        """Claim nothing more, let batches run until `by` (monotonic; infinity: for as long as they may), give back the rest,
        and end.
        """
        self._drain_by = by
        self.wake()

    def fence(self, incarnation: str) -> None:
        """The store took back the jobs leased to `incarnation`."""
        self._fenced = incarnation
        self.wake()

    def reload(self) -> None:
        """Reload the model, because its code has changed. No job is lost: batches end first."""
        self._is_reload_due = True
        self.wake()

    def give_up(self, jobs: Sequence[JobId]) -> None:
        """The end of these running jobs was requested: their handler may stop early."""
        if jobs:
            self._debts.give_up(jobs)
            self.wake()

    def follow(self, queues: Sequence[str]) -> None:
        """Claim from these queues from now on, first from the first one, which is at home."""
        if queues != self._feeds.wanted:
            self._feeds.wanted = queues
            self.wake()

    def wake(self) -> None:
        """Make the loop take its next turn now."""
        os.eventfd_write(self._waker, 1)

    def set_peers(self, count: int) -> None:
        self._batcher.peers = count

    def leases(self) -> list[tuple[str, Lease]]:
        """The queues from which jobs are leased to this slot, each with the lease."""
        return [(feed.queue, feed.lease) for feed in self._feeds.all if self._claims.is_holding(feed.queue)]

    @property
    def ended(self) -> int:
        """How many jobs this slot has ended."""
        return self._debts.ended

    @property
    def is_expecting(self) -> bool:
        """Whether a submit may hand jobs to this slot."""
        return self._feeds.is_expecting

    def active_batches(self) -> list[Batch]:
        """In the child, or waiting for it."""
        return [*self._slot_child.in_flight.awaited(), *self._claims.waiting]

    @property
    def state(self) -> str:
        return self._slot_child.state

    # The loop.

    def run(self) -> None:
        self._selector.register(self._waker, EVENT_READ, _WAKER)
        while not self._is_over:
            try:
                self._serve()
            except Exception:
                # A bug may cost this batch but not the slot: give everything up, and start over under a new name.
                log.exception(SLOT_FAULT, model=self.spec.name)
                self._abandon()
                # A fault that repeats must not use up a whole core.
                time.sleep(RETRY_MOST_S / 4)
        self._close()

    def _serve(self) -> None:
        while not self._is_over:
            self._wait()
            self._tend()
            self._claims.settle_and_claim(is_draining=self._drain_by is not None)
            self._hand_over()
            # D38: a shard is claimed only by a request of its own, after the ordinary lane.
            if self._claims.claim_shard(is_draining=self._drain_by is not None):
                self._hand_over()

    def _wait(self) -> None:
        before, now = self.turned_at, time.monotonic()
        self.turned_at = now
        for key, mask in self._selector.select(self._pause_s(now)):
            if key.data == _WAKER:
                os.eventfd_read(self._waker)
            elif isinstance(key.data, ClaimFeed):
                # Messages that had arrived before the previous turn were read in it.
                self._claims.read_messages(key.data, since=before)
            else:
                for event in self._slot_child.handle(key.data, mask, time.monotonic()):
                    self._apply(event)

    def _pause_s(self, now: float) -> float:
        """How long the loop has nothing to do unless something happens."""
        times = [
            now + IDLE_POLL_S,
            self._slot_child.due_at(is_draining=self._drain_by is not None),
            self._inputs.again_at(now),
            self._claims.due_at(now, is_draining=self._drain_by is not None),
        ]
        if self._drain_by is not None and not self._is_disowned:
            times.append(self._drain_by)
        if self._reports.pending and not self._debts.has_debts:
            times.append(self._reports.due_at)
        return max(0.0, min(times) - now)

    # What happened.

    def _apply(self, event: Event) -> None:
        match event:
            case BatchRan(batch, done):
                self._owe_reports(batch)
                batch, done = self._verdicts.without_unread(batch, done)
                if batch.jobs:
                    self.facts.learn(batch, done, self._batcher)
                    self._verdicts.on_ran(batch, done)
            case BatchEnded(batch):
                self._owe_reports(batch)
                self._debts.owe(batch)
            case ItemsSaid(batch, said):
                self._on_said(batch, said)
            case BatchLost(batch):
                self._owe_reports(batch)
                self._verdicts.on_lost(event)
            case HandlerMeasured(samples):
                self._context.observers.notify(lambda observer: observer.on_measured(self.spec, self.name, samples))
            case _:
                self._on_child(event)

    def _on_child(self, event: ChildReady | ChildExited | ChildUnloadable) -> None:
        match event:
            case ChildReady(ready):
                self._on_ready(ready)
            case ChildExited(why):
                self._context.observers.notify(lambda observer: observer.on_child_ended(self.spec, why))
            case ChildUnloadable(error):
                self._context.observers.notify(lambda observer: observer.on_unloadable(self.spec, error))

    def _on_said(self, batch: Batch, said: ItemReports) -> None:
        self._reports.note(batch, said)
        for observer in self._context.observers.of_batches:
            observer.on_said(self.spec)

    def _owe_reports(self, ended: Batch | None = None) -> None:
        if ended is not None and self._reports.said:
            self._reports.close(ended)
        if self._reports.pending:
            for said in self._reports.take(time.monotonic()):
                self._debts.owe(said)
        if ended is not None and self._reports.said:
            self._reports.forget(ended)

    def _on_ready(self, ready: Ready) -> None:
        self.facts.on_ready(ready, declared=self._context.declared_policy, remembered=self._claims.learned_times)
        self._batcher.follow(self.facts.policy, fits=ready.fits)
        self._context.observers.notify(lambda observer: observer.on_loaded(self.spec, ready.load_s))

    # What to do.

    def _tend(self) -> None:
        now = time.monotonic()
        self._obey()
        if self._drain_by is not None:
            self._wind_down(now, self._drain_by)
        else:
            if self._is_reload_due:
                self._is_reload_due = False
                self._slot_child.reload(now)
            for event in self._slot_child.tend(now):
                self._apply(event)
        self._check_lease(now)
        in_flight = self._slot_child.in_flight
        if self._slot_child.is_worn:
            self._verdicts.give_back(in_flight.recall_waiting_shards(), ReleaseReason.UNSTARTED)
        self.progress.note(in_flight.signs_of_life(self._claims.waiting))
        unwanted, lost = self._debts.take_unwanted()
        if unwanted or lost:
            # Tell the child which of its items are no longer wanted.
            in_flight.give_up(unwanted, lost=lost)
        in_flight.give_up_late(now)
        if self._reports.pending and now >= self._reports.due_at and not self._debts.has_debts:
            # While the store is away they wait, and the latest replaces what came before.
            self._owe_reports()
        if self._reports.is_full != self._slot_child.is_paused:
            self._slot_child.pause(now, is_paused=self._reports.is_full)

    def _obey(self) -> None:
        """Carry out the orders of other threads."""
        self._feeds.follow_wanted()
        if self._fenced and self._feeds.is_name(self._fenced):
            log.warning(LEASE_LOST, model=self.spec.name, worker=self._fenced, batches=len(self.active_batches()))
            self._context.observers.notify(lambda observer: observer.on_lease_lost(self.spec, "lost"))
            self._abandon()

    def _check_lease(self, now: float) -> None:
        """Without a confirmed lease nothing new may start; a running batch may be settled if the store still agrees."""
        lapsed = self._feeds.lapsed(now)
        if lapsed and not self._has_lapsed:
            log.warning(LEASE_LAPSED, model=self.spec.name, worker=lapsed[0].lease.name)
            self._context.observers.notify(lambda observer: observer.on_lease_lost(self.spec, "lapsed"))
            self._verdicts.give_back(self._slot_child.in_flight.recall(), ReleaseReason.UNSTARTED)
        if lapsed:
            # In each such turn: a process may be stopped again at once, and find more that was handed to it meanwhile.
            self._give_back_waiting(ReleaseReason.UNSTARTED)
        self._has_lapsed = bool(lapsed)
        if self._feeds.is_unsure and not self._slot_child.runs_model_code:
            # What an extension drives may take hours and go on anywhere, so this slot gives it back and claims others.
            self._verdicts.give_back(self._slot_child.in_flight.recall(), ReleaseReason.UNSTARTED)

    def _wind_down(self, now: float, drain_by: float) -> None:
        if not self._is_draining or self._claims.waiting:
            self._is_draining = True
            self._verdicts.give_back(self._slot_child.in_flight.recall(), ReleaseReason.DRAIN)
            self._give_back_waiting(ReleaseReason.DRAIN)
        self._slot_child.end_if_hung(now)
        if now >= drain_by:
            self._is_disowned = True
            self._verdicts.give_back(self._slot_child.in_flight.disown(), ReleaseReason.DRAIN)
        if not self._claims.is_holding() and not self._feeds.is_expecting:
            self._is_over = not self._debts.has_debts or now > drain_by + _SETTLE_LATE_S

    def _give_back_waiting(self, reason: ReleaseReason) -> None:
        self._verdicts.give_back(self._claims.waiting, reason)
        self._claims.waiting.clear()

    def _abandon(self) -> None:
        """Drop all batches, because their leases are lost, and go on under a new name."""
        self._slot_child.in_flight.disown()
        # Reports under the old lease are stale: the same job may come back with another token and a new stream.
        self._reports = Reports()
        self._claims.renew_leases()

    def _hand_over(self) -> None:
        waiting = self._claims.waiting
        if not waiting or not self._slot_child.is_taking or not self._is_free_for(waiting[0]):
            return
        filled = self._inputs.fill(waiting[0], time.monotonic(), asks=self._slot_child.asks or bool(self.spec.input_urls))
        if filled is None:
            return
        claimed, (batch, missing) = waiting.pop(0), filled
        if missing:
            self._verdicts.fail(claimed, missing, INPUT_MISSING_CODE, INPUT_MISSING, unrun_stamp(claimed))
        if batch.items:
            failpoint("before_run")
            for observer in self._context.observers.of_batches:
                if not batch.is_shard and (profile_dir := observer.profile_dir(claimed)):
                    batch = replace(batch, profile_dir=profile_dir)
            self._slot_child.give(batch, time.monotonic())

    def _is_free_for(self, batch: Batch) -> bool:
        """Whether the child may be given this batch now. A suspect runs alone, so that a crash is its own and hits no other."""
        load = self._slot_child.in_flight.load()
        if not self._slot_child.runs_model_code:
            return True
        if batch.is_solo and load.shards:
            # A shard may take minutes, so it is given back and runs again later.
            self._verdicts.give_back(self._slot_child.in_flight.recall_shards(), ReleaseReason.UNSTARTED)
        return not load.alone and not (batch.is_solo and (load.batches or load.shards))

    def _close(self) -> None:
        self._claims.close()
        self._slot_child.close()
        self._selector.close()
        os.close(self._waker)
