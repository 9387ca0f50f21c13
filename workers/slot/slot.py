"""One slot: one thread, one child, one loop that claims, hands over and settles."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from selectors import EVENT_READ, DefaultSelector
from typing import Any

import structlog

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import BatchStamp, Claim, ClaimRequest, Settled
from penstock.broker.store.wakeup import Wake
from penstock.errors import StoreUnavailable
from penstock.failpoints import failpoint
from penstock.model_spec import ModelSpec, SlotInfo, VersionInfo, WarmOrigin
from penstock.workers.devices.pins import Pin
from penstock.workers.fleet.announce import slot_info
from penstock.workers.ipc.frames import BatchDone, Ready
from penstock.workers.slot.batcher import IDLE_POLL_S, Batch, Batcher
from penstock.workers.slot.child_events import BatchLost, BatchRan, ChildExited, ChildReady, ChildUnloadable, Event
from penstock.workers.slot.child_supervisor import ChildSupervisor
from penstock.workers.slot.context import Observer, SlotContext
from penstock.workers.slot.inputs import INPUT_MISSING, Inputs
from penstock.workers.slot.latency import Latency
from penstock.workers.slot.lease import Lease
from penstock.workers.slot.settlement import RETRY_MOST_S, Absence, Finish, Settlements
from penstock.workers.slot.shard_lane import LaneProgress, ShardLane, shard_request
from penstock.workers.slot.verdicts import SLOT_FAULT, Verdicts

log = structlog.get_logger(__name__)
STORE_AWAY = "store_away"
STORE_BACK = "store_back"
LEASE_LOST = "lease_lost"
LEASE_LAPSED = "lease_lapsed"

_SETTLE_LATE_S = 5.0


class Slot:
    """`run` is its thread's work. Other threads may call what stands under "From other threads"."""

    def __init__(self, spec: ModelSpec, pin: Pin, around: SlotContext, *, name: str) -> None:
        self.spec = spec
        self.name = name
        self.pin = pin
        self._around = around
        self._selector = DefaultSelector()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        limit = 0 if "max_batch_size" in around.declared_policy else spec.policy.max_batch_size
        self._keeper = ChildSupervisor(spec, pin, self._selector, max_batch_size=limit)
        self._latency = Latency()
        self._batcher = Batcher(spec.policy, self._latency)
        self.lease = Lease(name, lease_s=around.lease_s, listen=lambda incarnation: around.listen(spec.name, incarnation))
        self._exchange = Settlements(
            around.open_store(),
            around.blobs,
            inline_bytes=around.inline_output_bytes,
            on_settled=self._on_settled,
            on_given_back=lambda debt, answers: self._tell(lambda observer: observer.given_back(spec, debt, answers)),
        )
        self._shards = ShardLane()
        self.progress = LaneProgress()
        self._verdicts = Verdicts(spec, self._exchange, self._tell)
        self._ear_fd: int | None = None
        self._waiting: list[Batch] = []
        self._inputs = Inputs(around.blobs)
        self._absence = Absence()
        self._unsure = False
        self._lapsed = False
        self._fenced = ""
        self._drain_by: float | None = None
        self._draining = False
        self._over = False
        self.turned_at = time.monotonic()
        self.version_info: VersionInfo | None = None
        self.policy = spec.policy
        self._warm = Ready(load_s=0.0)

    # From other threads.

    def drain(self, *, by: float) -> None:
        """Take nothing more, end what runs until `by` (monotonic), give back the rest, end."""
        self._drain_by = by
        self.ring()

    def fence(self, incarnation: str) -> None:
        """The store took back what `incarnation` held."""
        self._fenced = incarnation
        self.ring()

    def ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def set_peers(self, count: int) -> None:
        self._batcher.peers = count

    @property
    def holding(self) -> bool:
        return bool(self._waiting or self._keeper.held())

    def active(self) -> list[Batch]:
        return [*self._keeper.held(), *self._waiting]

    @property
    def state(self) -> str:
        return self._keeper.state

    def info(self) -> SlotInfo:
        return slot_info(self.spec, self.pin, self._keeper, latency_s=self._latency.table(), warm=self._warm)

    # The loop.

    def run(self) -> None:
        self._selector.register(self._bell, EVENT_READ, "bell")
        while not self._over:
            try:
                self._serve()
            except Exception:
                # A fault of ours must cost this batch at most: give everything up, and start over under a new name.
                log.exception(SLOT_FAULT, model=self.spec.name)
                self._start_over()
        self._close()

    def _serve(self) -> None:
        while not self._over:
            self._listen()
            self._tend()
            self._trade()
            self._hand_over()
            self._trade_shard()

    def _listen(self) -> None:
        now = self.turned_at = time.monotonic()
        for key, mask in self._selector.select(self._pause_s(now)):
            if key.data == "bell":
                os.eventfd_read(self._bell)
            elif key.data == "ear":
                self._hear()
            else:
                for event in self._keeper.handle(key.data, mask, time.monotonic()):
                    self._apply(event)

    def _pause_s(self, now: float) -> float:
        """How long nothing needs to be done unless something happens."""
        times = [now + IDLE_POLL_S, self._keeper.due_at(), self._inputs.again_at(now)]
        if self._exchange.owes or self.lease.ear is None:
            times.append(self._absence.try_at)
        if self._may_claim:
            times.append(max(self._absence.try_at, self._batcher.ask_at(now, self._keeper.busy())))
            times.append(max(self._absence.try_at, self._shard_at()))
        if self._drain_by is not None:
            times.append(self._drain_by)
        return max(0.0, min(times) - now)

    # What happened.

    def _hear(self) -> None:
        try:
            if any(isinstance(message, Wake) for message in self.lease.hear()):
                self._batcher.heard()
        except StoreUnavailable:
            self._deafen()

    def _deafen(self) -> None:
        if self._ear_fd is not None:
            self._selector.unregister(self._ear_fd)
            self._ear_fd = None
        self.lease.close()

    def _apply(self, event: Event) -> None:
        match event:
            case BatchRan(held, done):
                self._learn(held, done)
                self._verdicts.ran(held, done)
            case BatchLost():
                self._verdicts.lost(event)
            case ChildReady(ready):
                self._up(ready)
            case ChildExited(why):
                self._tell(lambda observer: observer.child_ended(self.spec, why))
            case ChildUnloadable(error):
                self._tell(lambda observer: observer.unloadable(self.spec, error))

    def _tell(self, what: Callable[[Observer], None]) -> None:
        for observer in self._around.observers:
            what(observer)

    def _learn(self, held: Batch, done: BatchDone) -> None:
        if done.cap is not None:
            self._batcher.capped(done.cap)
        elif not held.profile_dir and not any(job.call for job in held.jobs):
            # Explaining and recording take many times as long as answering, and say nothing of how long that takes.
            self._batcher.ran(held.size, done.inference_s, feed_s=done.began_at - held.given_at if held.fresh else None)

    def _up(self, ready: Ready) -> None:
        self._warm = ready
        if ready.warm_origin is WarmOrigin.SAMPLE:
            for run in ready.warm:
                self._latency.observe(run.size, run.run_s)
        self.version_info = VersionInfo(ready.schemas[0], ready.schemas[1], ready.accepts, ready.description)
        wishes = {"max_batch_size": ready.max_batch_size, "max_wait_s": ready.max_wait_s}
        mine: dict[str, Any] = {n: wish for n, wish in wishes.items() if wish is not None and n in self._around.declared_policy}
        self.policy = replace(self.spec.policy, **mine)
        self._batcher.follow(self.policy, fits=ready.fits)
        self._tell(lambda observer: observer.loaded(self.spec, ready.load_s))

    def _on_settled(self, finish: Finish, answers: Sequence[Settled], store_s: float) -> None:
        self._tell(lambda observer: observer.settled(self.spec, finish, answers, store_s))

    # What to do.

    def _tend(self) -> None:
        now = time.monotonic()
        if self._fenced and self._fenced == self.lease.name:
            log.warning(LEASE_LOST, model=self.spec.name, worker=self.lease.name, batches=len(self.active()))
            self._tell(lambda observer: observer.lease_lost(self.spec, "lost"))
            self._abandon()
        if self._drain_by is not None:
            self._wind_down(now)
        else:
            self._keeper.tend(now)
        self._check_lease(now)
        if self._keeper.wearing:
            self._return(self._keeper.recall_waiting_shards(), ReleaseReason.UNSTARTED)
        self.progress.saw(self._keeper.rows_done())

    def _check_lease(self, now: float) -> None:
        """Without a confirmed lease nothing new may start; what runs may be settled if the store still agrees."""
        lapsed = self.holding and self.lease.lapsed(now)
        if lapsed and not self._lapsed:
            log.warning(LEASE_LAPSED, model=self.spec.name, worker=self.lease.name)
            self._tell(lambda observer: observer.lease_lost(self.spec, "lapsed"))
            self._return_unstarted(ReleaseReason.UNSTARTED)
        self._lapsed = lapsed

    def _wind_down(self, now: float) -> None:
        if not self._draining:
            self._draining = True
            self._return_unstarted(ReleaseReason.DRAIN)
        assert self._drain_by is not None
        if now >= self._drain_by:
            self._return(self._keeper.disown(), ReleaseReason.DRAIN)
        if not self.holding:
            self._over = not self._exchange.owes or now > self._drain_by + _SETTLE_LATE_S

    def _return_unstarted(self, reason: ReleaseReason) -> None:
        self._return([*self._keeper.recall(), *self._waiting], reason)
        self._waiting.clear()

    def _return(self, given_up: Sequence[Batch], reason: ReleaseReason) -> None:
        for held in given_up:
            self._verdicts.give_back(held.jobs, held.worker, reason)

    def _abandon(self) -> None:
        """Drop all that is held, as nobody's, and go on under a new name."""
        self._waiting.clear()
        self._keeper.disown()
        self._deafen()
        self.lease.renew()
        self._unsure = False

    def _start_over(self) -> None:
        self._abandon()
        # A fault that repeats must not take a whole core.
        time.sleep(RETRY_MOST_S / 4)

    @property
    def _may_claim(self) -> bool:
        return (
            self._drain_by is None
            and not self._waiting
            and not self._unsure
            and self.lease.ear is not None
            and self._keeper.taking
        )

    def _trade(self) -> None:
        now = time.monotonic()
        if now < self._absence.try_at:
            return
        request: ClaimRequest | None = None
        try:
            self._settle_name()
            ask = self._batcher.ask(now, self._keeper.busy()) if self._may_claim else None
            nonce, lease_s = secrets.token_hex(8), self._around.lease_s
            request = ask.request(self.spec, self.lease.name, nonce=nonce, lease_s=lease_s) if ask else None
            if request is None and not self._exchange.owes:
                return
            claim = self._exchange.trade(request)
        except StoreUnavailable as error:
            # Its answer lost, a claim may have been granted: those jobs go back when this name is given up.
            self._unsure = self._unsure or request is not None
            self._back_off(error)
            return
        self._store_answers()
        if claim is not None and request is not None:
            self._accept(claim, request, asked_at=now)

    def _settle_name(self) -> None:
        if self._unsure and not self.holding and not self._exchange.owes:
            self._abandon()
        if self.lease.ear is None and self._drain_by is None:
            self._ear_fd = self.lease.open()
            self._selector.register(self._ear_fd, EVENT_READ, "ear")
            self._batcher.heard()

    def _back_off(self, error: StoreUnavailable) -> None:
        if self._absence.failed(time.monotonic()):
            log.warning(STORE_AWAY, model=self.spec.name, error=str(error))
        self._tell(lambda observer: observer.store_failed("slot"))

    def _store_answers(self) -> None:
        if self._absence.over():
            log.info(STORE_BACK, model=self.spec.name)

    def _accept(self, claim: Claim, request: ClaimRequest, *, asked_at: float) -> None:
        now = time.monotonic()
        self._batcher.answered(claim, asked_at=asked_at, now=now)
        self._shards.told(claim)
        if claim.foreign:
            self._exchange.adopt(claim, self.spec, self._around.default_version())
        self._take(claim, request, asked_at=asked_at, now=now)

    def _take(self, claim: Claim, request: ClaimRequest, *, asked_at: float, now: float) -> None:
        if claim.changes:
            self._tell(lambda observer: observer.changed(claim.changes))
        if claim.jobs:
            failpoint("after_claim")
            self.lease.confirmed(asked_at)
            held = Batch(
                claim.jobs,
                claim.reason,
                request.worker,
                request.nonce,
                claimed_at=now,
                leased_at=claim.now,
                device=self.pin.device,
            )
            self._waiting.append(held)
            self._tell(lambda observer: observer.claimed(self.spec, held))

    def _shard_at(self) -> float:
        """When to ask for a shard."""
        busy = self._keeper.busy()
        idle = self._keeper.taking_shards and not busy.alone
        return self._shards.ask_at(held=busy.shards, peers=self._batcher.peers) if idle else float("inf")

    def _trade_shard(self) -> None:
        """Only when nothing of the ordinary lane is to be done."""
        now = time.monotonic()
        if not self._may_claim or self._exchange.owes or now < max(self._absence.try_at, self._shard_at()):
            return
        request = shard_request(self.spec, self.lease.name, nonce=secrets.token_hex(8), lease_s=self._around.lease_s)
        try:
            claim = self._exchange.trade(request)
        except StoreUnavailable as error:
            self._unsure = True
            self._back_off(error)
            return
        assert claim is not None
        self._shards.answered(claim, time.monotonic())
        self._take(claim, request, asked_at=now, now=time.monotonic())
        self._hand_over()

    def _hand_over(self) -> None:
        if not self._waiting or not self._keeper.taking:
            return
        busy = self._keeper.busy()
        # A suspect runs alone: a crash must be its own, and must not take neighbours along.
        if self._waiting[0].solo and busy.shards:
            # A shard may take minutes: it runs again later.
            self._return(self._keeper.recall_shards(), ReleaseReason.UNSTARTED)
        if busy.alone or (self._waiting[0].solo and (busy.batches or busy.shards)):
            return
        batch = self._inputs.fill(self._waiting[0], time.monotonic())
        if batch is None:
            return
        self._waiting.pop(0)
        if batch.missing:
            unrun = BatchStamp(batch.held.nonce, batch.held.size, batch.held.reason)
            self._verdicts.fail(batch.held, batch.missing, "input_missing", INPUT_MISSING, unrun)
        if batch.items:
            failpoint("before_run")
            profile_dir = "" if batch.held.shard else self._around.profile_dir(batch.held)
            held = replace(batch.held, jobs=batch.jobs, profile_dir=profile_dir)
            self._keeper.give(held, list(batch.items), time.monotonic())

    def _close(self) -> None:
        self._deafen()
        self._keeper.close()
        self._exchange.close()
        self._selector.close()
        os.close(self._bell)
