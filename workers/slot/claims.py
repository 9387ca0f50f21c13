"""A slot's calls to the store: it settles its debts and claims batches and shards under its leases, with their inputs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from selectors import BaseSelector

import structlog

from penstock.broker.blobs.files import BlobStore, BlobsUnavailable
from penstock.broker.records import (
    GONE_HINT,
    CancelRequested,
    Claim,
    ClaimedJob,
    ClaimRequest,
    HandedOver,
    RolloutChanged,
    Wake,
)
from penstock.errors import StoreUnavailable
from penstock.failpoints import failpoint
from penstock.model_spec import ModelSpec
from penstock.workers.slot.batch import Batch, ChildLoad, with_inputs
from penstock.workers.slot.batcher import Batcher
from penstock.workers.slot.child.slot_child import SlotChild
from penstock.workers.slot.context import ALL_MODELS, SlotContext
from penstock.workers.slot.feeds import ClaimFeed, ClaimFeeds, in_order, new_nonce, shard_request
from penstock.workers.slot.latency import Latency
from penstock.workers.slot.settlement import Absence, Debts

log = structlog.get_logger(__name__)
BLOBS_AWAY = "blobs_away"
BLOBS_BACK = "blobs_back"
RECORDS_GONE = "records_gone"


class Inputs:
    """One slot's access to inputs. While the blob store is away its batch waits as claimed, and tries become ever rarer."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._absence = Absence()

    def again_at(self, now: float) -> float:
        """When to try again to fill a batch; infinity if no batch waits for that."""
        return self._absence.try_at if self._absence.try_at > now else float("inf")

    def fill(self, batch: Batch, now: float, *, asks: bool = False) -> tuple[Batch, list[ClaimedJob]] | None:
        """The batch with the items of those jobs whose inputs were found, and the other jobs.

        None while the blob store is away. `now` is monotonic. `asks`: with the facts of each job.
        """
        if now < self._absence.try_at:
            return None
        try:
            names = [job.input.blob for job in batch.jobs if job.input.blob]
            files = dict(zip(names, self._blobs.readable(names), strict=True)) if names else {}
        except BlobsUnavailable as away:
            if self._absence.on_failure(now):
                log.warning(BLOBS_AWAY, model=batch.jobs[0].id.model, error=away.message, hint=away.hint)
            return None
        if self._absence.on_answer():
            log.info(BLOBS_BACK, model=batch.jobs[0].id.model)
        return with_inputs(batch, files, asks=asks or batch.is_shard)


_NEVER = float("inf")
_PAST = float("-inf")


class Claims:
    """Used by the slot's thread only, except for `feeds`. `waiting`: claimed batches that the child has not been given yet.

    `selector` reports messages for `read_messages` with the feed that they are for.
    """

    def __init__(
        self,
        spec: ModelSpec,
        context: SlotContext,
        selector: BaseSelector,
        latency: Latency,
        slot_child: SlotChild,
        *,
        name: str,
        device: str,
    ) -> None:
        self._spec = spec
        self._context = context
        self._selector = selector
        self._slot_child = slot_child
        self._device = device
        # How many calls asked for jobs.
        self._asked = 0
        self.debts = Debts(spec, context)
        self.batcher = Batcher(spec, latency, new_nonce=new_nonce, lease_s=context.lease_s)
        self.waiting: list[Batch] = []
        self.feeds = ClaimFeeds(
            name, spec.name, context, selector, debts=self.debts, batcher=self.batcher, is_holding=self.is_holding
        )

    def is_holding(self, queue: str = "") -> bool:
        """Whether jobs are leased to this slot: of this queue, or any."""
        held = (*self.waiting, *self._slot_child.in_flight.awaited())
        return any(batch.queue == queue for batch in held) if queue else bool(held)

    # The subscriptions.

    def read_messages(self, feed: ClaimFeed, *, since: float) -> None:
        """`since`: a moment (monotonic) before which no message that is read now had arrived."""
        try:
            messages = feed.lease.read()
        except StoreUnavailable:
            # D62: an answer to the offer may be lost with the link, and then its jobs are leased to the present name. And the
            # server that answers next may have lost its last moments, in which this slot settled jobs: it holds them again.
            feed.is_unsure = True
            feed.stop_listening(self._selector)
            return
        for message in messages:
            if isinstance(message, HandedOver):
                self._on_handed_over(feed, message, since)
            elif isinstance(message, CancelRequested):
                self.debts.give_up([message.id])
            elif isinstance(message, Wake):
                feed.view.on_wake_up()
            elif isinstance(message, RolloutChanged):
                self._context.on_rollout()

    def _on_handed_over(self, feed: ClaimFeed, message: HandedOver, since: float) -> None:
        now, claim = time.monotonic(), message.claim
        feed.on_handed_over(claim)
        self.batcher.view = feed.view
        self.batcher.on_handed_over(claim, now)
        self._take(feed, claim, feed.lease.name, message.nonce, asked_at=since, now=now)
        if claim.messages:
            self._read_messages(feed, claim)

    def renew_leases(self) -> None:
        """Go on under new names; what the store leased to the old ones is given up."""
        self.waiting.clear()
        for feed in self.feeds.all:
            feed.renew_lease(self._selector)

    # When to call.

    def due_at(self, now: float, *, is_draining: bool) -> float:
        """When the store is to be called if nothing happens before."""
        can_claim = self._can_claim(is_draining=is_draining)
        due_at, load = _NEVER, self._slot_child.in_flight.load()
        for feed in self.feeds.all:
            try_at = self.debts.absence.try_at
            if feed.is_call_due(can_claim=can_claim) or feed.is_deaf(is_draining=is_draining, is_holding=self.is_holding):
                due_at = min(due_at, try_at)
            if feed.awaited_until > _PAST:
                due_at = min(due_at, feed.awaited_until)
            if can_claim and feed.is_open:
                self.batcher.view = feed.view
                ask_at = min(self.batcher.ask_at(now, load), self._shard_at(feed, load))
                due_at = min(due_at, max(try_at, ask_at))
        return due_at

    def _can_claim(self, *, is_draining: bool) -> bool:
        is_paused = not self._context.paused.isdisjoint((self._spec.name, ALL_MODELS))
        return not (is_draining or self.waiting or is_paused) and self._slot_child.is_taking

    def _shard_at(self, feed: ClaimFeed, load: ChildLoad) -> float:
        """When to ask for a shard."""
        if load.alone or not self._slot_child.is_taking_shards:
            return _NEVER
        return feed.shards.ask_at(in_child=load.shards, peers=self.batcher.peers)

    # The calls.

    def settle_and_claim(self, *, is_draining: bool) -> None:
        """Settle what is owed and claim the batch that the policy asks for, as one call where possible."""
        now = time.monotonic()
        can_claim = self._can_claim(is_draining=is_draining)
        for feed in self.feeds.all:
            self._prepare(feed, now, can_claim=can_claim, is_draining=is_draining)
        asked, request = self._next(now) if can_claim else (None, None)
        if asked is not None and request is not None:
            self._claim(asked, request, now)
        elif self.debts.has_debts and now >= self.debts.absence.try_at:
            self._settle()

    def _prepare(self, feed: ClaimFeed, now: float, *, can_claim: bool, is_draining: bool) -> None:
        """End an offer that cannot be kept, take a new name where the old one may not be used, and listen."""
        if now < self.debts.absence.try_at:
            return
        try:
            feed.end_offer(self._spec.version, now, can_claim=can_claim)
            if feed.is_unsure and not self.debts.has_debts and not self.is_holding(feed.queue):
                feed.renew_lease(self._selector)
            if feed.is_deaf(is_draining=is_draining, is_holding=self.is_holding):
                feed.listen(self._selector)
        except StoreUnavailable as error:
            self.debts.on_failure(error)
        if feed.is_leaving:
            self.feeds.drop_left()

    def _next(self, now: float) -> tuple[ClaimFeed, ClaimRequest] | tuple[None, None]:
        """The next request and its feed."""
        load = self._slot_child.in_flight.load()
        for feed in in_order(self.feeds.all, self._asked):
            if feed.is_open and now >= self.debts.absence.try_at:
                self.batcher.view = feed.view
                if request := self.batcher.next_request(now, load):
                    return feed, request
        return None, None

    def _settle(self) -> None:
        try:
            self.debts.settlements.settle_and_claim(None)
        except StoreUnavailable as error:
            self.debts.on_failure(error)
            return
        self.debts.on_answer()

    def _claim(self, feed: ClaimFeed, request: ClaimRequest, now: float) -> None:
        self._asked += 1
        try:
            claim = self.debts.settlements.settle_and_claim(request)
        except StoreUnavailable as error:
            # D11: never repeated; if the claim was granted, its jobs go back when this name is given up.
            feed.is_unsure = True
            self.debts.on_failure(error)
            return
        self.debts.on_answer()
        assert claim is not None
        self._on_claim(feed, claim, request, asked_at=now)

    def _on_claim(self, feed: ClaimFeed, claim: Claim, request: ClaimRequest, *, asked_at: float) -> None:
        now = time.monotonic()
        feed.on_claim(claim, offered=request.offer)
        self.batcher.view = feed.view
        self.batcher.on_claim(claim, asked_at=asked_at, now=now)
        # The leased jobs come first: they must not be lost if the call for the messages fails.
        self._take(feed, claim, request.worker, request.nonce, asked_at=asked_at, now=now)
        if claim.jobs:
            for other in self.feeds.all:
                other.is_offer_stale = other is not feed
        if claim.messages:
            self._read_messages(feed, claim)

    def _read_messages(self, feed: ClaimFeed, claim: Claim) -> None:
        if (read := self._context.read_messages) is None:
            return
        try:
            read(self.debts.settlements.store, claim, feed.queue, spec=self._spec, info=self._context.info(self._spec))
        except StoreUnavailable as error:
            # The store keeps the messages, and hands them out again.
            self.debts.on_failure(error)

    def claim_shard(self, *, is_draining: bool) -> bool:
        """Claim a shard if one is wanted and the ordinary lane has nothing to do. True if the store was asked."""
        if not self._can_claim(is_draining=is_draining):
            return False
        now, load = time.monotonic(), self._slot_child.in_flight.load()
        if self.debts.has_debts or now < self.debts.absence.try_at:
            return False
        for feed in self.feeds.all:
            if feed.is_open and now >= self._shard_at(feed, load):
                return self._claim_shard(feed, now)
        return False

    def _claim_shard(self, feed: ClaimFeed, now: float) -> bool:
        request = shard_request(self._spec, feed.queue, feed.lease.name, nonce=new_nonce(), lease_s=self._context.lease_s)
        try:
            claim = self.debts.settlements.settle_and_claim(request)
        except StoreUnavailable as error:
            feed.is_unsure = True
            self.debts.on_failure(error)
            return False
        assert claim is not None
        feed.shards.on_claim(claim, time.monotonic())
        self._take(feed, claim, request.worker, request.nonce, asked_at=now, now=time.monotonic())
        return True

    def _take(self, feed: ClaimFeed, claim: Claim, worker: str, nonce: str, *, asked_at: float, now: float) -> None:
        if claim.changes:
            # D28: no worker settled these jobs, so the one whose call changed them reports it.
            self._context.observers.notify(lambda observer: observer.on_changed(claim.changes))
        if claim.gone:
            log.error(RECORDS_GONE, model=self._spec.name, jobs=claim.gone, hint=GONE_HINT)
        if not claim.jobs:
            return
        failpoint("after_claim")
        feed.lease.confirm(asked_at)
        batch = Batch(
            claim.jobs,
            self.batcher.reason(claim),
            worker,
            nonce,
            claimed_at=now,
            leased_at=claim.now,
            device=self._device,
            urgent=self.batcher.is_urgent,
        )
        self.waiting.append(batch)
        for observer in self._context.observers.of_batches:
            observer.on_claimed(self._spec, batch)

    def learned_times(self, kind: str) -> Mapping[int, float]:
        """How long batches of each size took in earlier processes of this kind; empty if unknown."""
        try:
            return self.debts.settlements.learned_times(kind)
        except StoreUnavailable as error:
            # The slot learns the times again.
            self.debts.on_failure(error)
            return {}

    def close(self) -> None:
        for feed in self.feeds.all:
            feed.stop_listening(self._selector)
        self.debts.close()
