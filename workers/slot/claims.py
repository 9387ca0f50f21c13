"""A slot's calls to the store: it settles what it owes and claims batches and shards under its lease, with their inputs."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from selectors import EVENT_READ, BaseSelector

import structlog
from msgspec import structs

from penstock.broker.blobs.files import BlobFile, BlobStore, BlobsUnavailable
from penstock.broker.records import GONE_HINT, Claim, ClaimedJob, ClaimRequest
from penstock.broker.store.notifications import CancelRequested, HandedOver, RolloutChanged, Wake
from penstock.errors import StoreUnavailable
from penstock.failpoints import failpoint
from penstock.model_spec import ModelSpec
from penstock.workers.ipc.frames import Item
from penstock.workers.slot.batch import Batch
from penstock.workers.slot.batcher import Batcher, ShardLane, shard_request
from penstock.workers.slot.child.slot_child import SlotChild
from penstock.workers.slot.context import SlotContext
from penstock.workers.slot.latency import Latency
from penstock.workers.slot.lease import Lease
from penstock.workers.slot.settlement import Absence, Settlements

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
            filled = _with_inputs(batch, self._blobs, asks=asks or batch.is_shard)
        except BlobsUnavailable as away:
            if self._absence.on_failure(now):
                log.warning(BLOBS_AWAY, model=batch.jobs[0].id.model, error=away.message, hint=away.hint)
            return None
        if self._absence.on_answer():
            log.info(BLOBS_BACK, model=batch.jobs[0].id.model)
        return filled


def _with_inputs(batch: Batch, blobs: BlobStore, *, asks: bool) -> tuple[Batch, list[ClaimedJob]]:
    names = [job.input.blob for job in batch.jobs if job.input.blob]
    files = dict(zip(names, blobs.readable(names), strict=True)) if names else {}
    pairs = [(job, _item(job, files)) for job in batch.jobs]
    missing = [job for job, item in pairs if item is None]
    jobs = batch.jobs if not missing else tuple(job for job, item in pairs if item is not None)
    items = tuple(_with_facts(batch, job, item) if asks else item for job, item in pairs if item is not None)
    return replace(batch, jobs=jobs, items=items), missing


def _with_facts(batch: Batch, job: ClaimedJob, item: Item) -> Item:
    return structs.replace(item, facts=batch.facts(job))


def _item(job: ClaimedJob, files: Mapping[str, BlobFile | None]) -> Item | None:
    if not job.input.blob:
        return Item(job.input.content_type, job.input.data, call=job.call)
    file = files[job.input.blob]
    if file is None:
        return None
    media, path = job.input.content_type, str(file.path)
    return Item(media, path=path, call=job.call, own=file.own, offset=file.offset, length=file.length, checksum=file.checksum)


STORE_AWAY = "store_away"
STORE_BACK = "store_back"

LISTENER = "listener"
_NEVER = float("inf")
_PAST = float("-inf")
# An answer that was published before an offer could be withdrawn arrives within this time, or not at all.
_ANSWER_ARRIVES_S = 2.0


class Claims:
    """Used by the slot's thread only, except for `lease`. `waiting`: claimed batches that the child has not been given yet.

    `selector` reports messages for `read_messages` under the name `LISTENER`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        context: SlotContext,
        selector: BaseSelector,
        latency: Latency,
        child_supervisor: SlotChild,
        *,
        name: str,
        device: str,
    ) -> None:
        self._spec = spec
        self._context = context
        self._selector = selector
        self._child_supervisor = child_supervisor
        self._device = device
        self.lease = lease = Lease(
            name, lease_s=context.lease_s, listen=lambda incarnation: context.listen(spec.name, incarnation)
        )
        self.batcher = Batcher(spec, latency, worker=lambda: lease.name, new_nonce=_new_nonce, lease_s=context.lease_s)
        self.settlements = Settlements(
            spec, context.open_store(), context.blobs, inline_bytes=context.inline_output_bytes, observers=context.observers
        )
        self.waiting: list[Batch] = []
        self._shards = ShardLane()
        self._absence = Absence()
        self._listener_fd: int | None = None
        # Whether the store may have granted a claim whose answer was lost.
        self._is_unsure = False
        # Whether a submit may claim for this slot, and until when (monotonic) the answer to a used offer is waited for.
        self._has_offered = False
        self._awaited_until = _PAST

    @property
    def is_holding(self) -> bool:
        """Whether jobs are leased to this slot."""
        return bool(self.waiting or self._child_supervisor.in_flight.awaited())

    @property
    def is_unsure(self) -> bool:
        """Whether this slot claims nothing more before it has ended what it holds, and goes on under a new name."""
        return self._is_unsure

    @property
    def is_expecting(self) -> bool:
        """Whether a submit may have handed jobs to this slot."""
        return self._has_offered or self._awaited_until > _PAST

    # The subscription.

    def read_messages(self, *, since: float) -> None:
        """`since`: a moment (monotonic) before which no message that is read now had arrived."""
        try:
            messages = self.lease.read()
        except StoreUnavailable:
            # D62: an answer to the offer may be lost with the link, and then its jobs are leased to the present name. And the
            # store that answers next may have lost its last moments, in which this slot settled jobs: it holds them again.
            self._is_unsure = True
            self._stop_listening()
            return
        for message in messages:
            if isinstance(message, HandedOver):
                self._on_handed_over(message, since)
            elif isinstance(message, CancelRequested):
                self.settlements.unwanted.append(message.id)
            elif isinstance(message, Wake):
                self.batcher.on_wake_up()
            elif isinstance(message, RolloutChanged):
                self._context.on_rollout()

    def _on_handed_over(self, message: HandedOver, since: float) -> None:
        now = time.monotonic()
        self._has_offered, self._awaited_until = _is_open(message.claim), _PAST
        self.batcher.on_handed_over(message.claim, now)
        self._shards.note(message.claim)
        self._take(message.claim, self.lease.name, message.nonce, asked_at=since, now=now)
        if message.claim.foreign:
            self._adopt(message.claim)

    def _listen(self) -> None:
        self._listener_fd = self.lease.open()
        self._selector.register(self._listener_fd, EVENT_READ, LISTENER)
        # A wake-up may have been missed meanwhile.
        self.batcher.on_wake_up()

    def _stop_listening(self) -> None:
        if self._listener_fd is not None:
            self._selector.unregister(self._listener_fd)
            self._listener_fd = None
        self.lease.close()

    def renew_lease(self) -> None:
        """Go on under a new name; what the store leased to the old one is given up."""
        self.waiting.clear()
        self._stop_listening()
        self.lease.renew()
        self._is_unsure = self._has_offered = False
        self._awaited_until = _PAST

    # When to call.

    def due_at(self, now: float, *, is_draining: bool) -> float:
        """When the store is to be called if nothing happens before."""
        due_at = _NEVER
        if self.settlements.has_debts or not self.lease.is_listening or self._is_withdrawal_due(is_draining=is_draining):
            due_at = self._absence.try_at
        if self._awaited_until > _PAST:
            due_at = min(due_at, self._awaited_until)
        if self._can_claim(is_draining=is_draining):
            ask_at = min(self.batcher.ask_at(now, self._child_supervisor.in_flight.load()), self._shard_at())
            due_at = min(due_at, max(self._absence.try_at, ask_at))
        return due_at

    def _can_claim(self, *, is_draining: bool) -> bool:
        return (
            not is_draining
            and not self.waiting
            and not self._is_unsure
            and self.lease.is_listening
            and self._child_supervisor.is_taking
        )

    def _is_withdrawal_due(self, *, is_draining: bool) -> bool:
        """Whether jobs that were handed over now would wait for a child that cannot take them, while other slots could."""
        return self._has_offered and not self._can_claim(is_draining=is_draining)

    def _shard_at(self) -> float:
        """When to ask for a shard."""
        if not self._child_supervisor.is_taking_shards:
            return _NEVER
        load = self._child_supervisor.in_flight.load()
        return _NEVER if load.alone else self._shards.ask_at(in_child=load.shards, peers=self.batcher.peers)

    # The calls.

    def settle_and_claim(self, *, is_draining: bool) -> None:
        """Settle what is owed and claim the batch that the policy asks for, as one call where possible."""
        now = time.monotonic()
        if now < self._absence.try_at:
            return
        request: ClaimRequest | None = None
        try:
            self._end_offer(now, is_draining=is_draining)
            self._prepare_lease(is_draining=is_draining)
            if self._can_claim(is_draining=is_draining):
                request = self.batcher.next_request(now, self._child_supervisor.in_flight.load())
            if request is None and not self.settlements.has_debts:
                return
            claim = self.settlements.settle_and_claim(request)
        except StoreUnavailable as error:
            # D11: never repeated; if the claim was granted, its jobs go back when this name is given up.
            self._is_unsure = self._is_unsure or request is not None
            self._on_failure(error)
            return
        if self._absence.on_answer():
            log.info(STORE_BACK, model=self._spec.name)
        if claim is not None and request is not None:
            self._on_claim(claim, request, asked_at=now)

    def _end_offer(self, now: float, *, is_draining: bool) -> None:
        """Withdraw an offer that cannot be kept; if a submit has used it, its answer is on the way, and is waited for."""
        if _PAST < self._awaited_until < now:
            self._awaited_until, self._is_unsure = _PAST, True
        if not self._is_withdrawal_due(is_draining=is_draining):
            return
        self._has_offered = False
        try:
            if not self.settlements.withdraw(self.lease.name):
                self._awaited_until = now + _ANSWER_ARRIVES_S
        except StoreUnavailable:
            self._is_unsure = True
            raise

    def _prepare_lease(self, *, is_draining: bool) -> None:
        if self._is_unsure and not self.is_holding and not self.settlements.has_debts:
            self.renew_lease()
        if not self.lease.is_listening and not is_draining:
            self._listen()

    def _on_failure(self, error: StoreUnavailable) -> None:
        if self._absence.on_failure(time.monotonic()):
            log.warning(STORE_AWAY, model=self._spec.name, error=str(error))
        self._context.observers.notify(lambda observer: observer.on_store_failed("slot"))

    def _on_claim(self, claim: Claim, request: ClaimRequest, *, asked_at: float) -> None:
        now = time.monotonic()
        self.batcher.on_claim(claim, asked_at=asked_at, now=now)
        self._shards.note(claim)
        self._has_offered = request.offer and _is_open(claim)
        # First what is leased to this slot: a call for the messages that fails must not cost it.
        self._take(claim, request.worker, request.nonce, asked_at=asked_at, now=now)
        if claim.foreign:
            self._adopt(claim)

    def _adopt(self, claim: Claim) -> None:
        try:
            self.settlements.adopt(claim, self._context.info(self._spec))
        except StoreUnavailable as error:
            # The store keeps the messages, and hands them out again.
            self._on_failure(error)

    def claim_shard(self, *, is_draining: bool) -> bool:
        """Claim a shard if one is wanted and the ordinary lane has nothing to do. True if the store was asked."""
        now = time.monotonic()
        if not self._can_claim(is_draining=is_draining) or self.settlements.has_debts:
            return False
        if now < max(self._absence.try_at, self._shard_at()):
            return False
        request = shard_request(self._spec, self.lease.name, nonce=_new_nonce(), lease_s=self._context.lease_s)
        try:
            claim = self.settlements.settle_and_claim(request)
        except StoreUnavailable as error:
            self._is_unsure = True
            self._on_failure(error)
            return False
        assert claim is not None
        self._shards.on_claim(claim, time.monotonic())
        self._take(claim, request.worker, request.nonce, asked_at=now, now=time.monotonic())
        return True

    def _take(self, claim: Claim, worker: str, nonce: str, *, asked_at: float, now: float) -> None:
        if claim.changes:
            # D28: no worker settled these jobs, so the one whose call changed them reports it.
            self._context.observers.notify(lambda observer: observer.on_changed(claim.changes))
        if claim.gone:
            log.error(RECORDS_GONE, model=self._spec.name, jobs=claim.gone, hint=GONE_HINT)
        if not claim.jobs:
            return
        failpoint("after_claim")
        self.lease.confirm(asked_at)
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
        """How long batches of each size took in earlier processes of this kind; empty if nobody knows."""
        try:
            return self.settlements.learned_times(kind)
        except StoreUnavailable as error:
            # The slot learns the times anew.
            self._on_failure(error)
            return {}

    def close(self) -> None:
        self._stop_listening()
        self.settlements.close()


def _is_open(claim: Claim) -> bool:
    """Whether the claim's offer stands after this answer: nothing was taken, and nothing waits for a later moment."""
    return not claim.jobs and claim.retry_in_s is None


def _new_nonce() -> str:
    # D4: random, and a part of each job's token.
    return secrets.token_hex(8)
