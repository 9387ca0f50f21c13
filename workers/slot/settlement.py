"""What a slot owes the store for its batches, and how it is settled: in one round trip with the next claim where possible."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import structlog

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.contract import ReleaseReason
from penstock.broker.records import BatchStamp, Claim, ClaimedJob, ClaimRequest, Ending, Reported, Settled
from penstock.errors import InternalError, StoreUnavailable
from penstock.failpoints import failpoint
from penstock.job import JobId, JobState, Payload
from penstock.model_spec import ModelSpec
from penstock.workers.ipc.frames import BatchDone
from penstock.workers.slot.batch import (
    Batch,
    Release,
    Retry,
    blob_name,
    decide,
    fail,
    is_too_large,
    release,
    sift_unread,
    stopped_stamp,
    unneeded_blobs,
)
from penstock.workers.slot.child.events import BatchLost, Cause
from penstock.workers.slot.context import Observers, SlotContext
from penstock.workers.slot.reports import AttemptKey, Said

if TYPE_CHECKING:
    from penstock.broker.store.sync import RedisStore

log = structlog.get_logger(__name__)
SETTLED_STALE = "settled_stale"
BATCH_LOST = "batch_lost"
SLOT_FAULT = "slot_fault"
STORE_AWAY = "store_away"
STORE_BACK = "store_back"
_MISCOUNTED = "answered with a wrong number of outcomes"
RETRY_MOST_S = 2.0
# The most batches settled in one round trip: with a small output each, a megabyte.
_MOST_TOGETHER = 64
_BACKOFF = Backoff(0.1, RETRY_MOST_S, jitter=0.5)

# A `Batch` in a debt has its endings. All jobs of a debt are in one queue.
Debt = Batch | Retry | Release | Said


class Absence:
    """Whether the store is away, and when to try it again (monotonic): after 0.1 s, 0.2 s ... 2 s, each up to half shorter."""

    def __init__(self) -> None:
        self._failures = BackoffCounter(_BACKOFF)
        self.try_at = float("-inf")

    def on_failure(self, now: float) -> bool:
        """Another call was not answered. True for the first one in a row."""
        self.try_at = now + self._failures.count_failure(chance=random.random())
        return self._failures.failures == 1

    def on_answer(self) -> bool:
        """The store answered. True if it was away before."""
        if not self._failures.failures:
            return False
        self._failures.reset()
        return True


class Settlements:
    """Debts to the store. Each stays until the store has taken it: nothing is forgotten while Redis is away.

    Outputs over `inline_bytes` go to the blob store.
    """

    def __init__(self, spec: ModelSpec, store: RedisStore, context: SlotContext) -> None:
        self._spec = spec
        self.store = store
        self._blobs, self._needless = context.blobs, context.needless
        self._inline_bytes = context.inline_output_bytes
        self._observers = context.observers
        self._debts: deque[Debt] = deque()
        # How many jobs this slot has ended.
        self.ended = 0
        # Running jobs whose end was asked for.
        self.unwanted: deque[JobId] = deque()
        # Attempts that run here and were lost: the store did not hear what they said.
        self.lost: deque[AttemptKey] = deque()

    @property
    def has_debts(self) -> bool:
        return bool(self._debts)

    def owe(self, debt: Debt) -> None:
        last = self._debts[-1] if self._debts else None
        if isinstance(debt, Release) and isinstance(last, Release) and (joined := last.joined(debt)):
            self._debts[-1] = joined
        else:
            self._debts.append(debt)

    def settle_and_claim(self, request: ClaimRequest | None) -> Claim | None:
        """Settle every debt, then claim if there is a request. Raises `StoreUnavailable`; unsettled debts then stay."""
        while self._debts:
            if ended := self._first_ended():
                is_all = len(ended) == len(self._debts)
                if (claim := self._finish_all(ended, request if is_all else None)) is not None:
                    return claim
            else:
                self._settle(self._debts[0])
                self._debts.popleft()
        return self.store.claim(request) if request is not None else None

    def withdraw(self, queue: str, version: str, worker: str) -> bool:
        """End the offer of `worker`; False if it was used, or there is none. Raises `StoreUnavailable`."""
        return self.store.withdraw(queue, version, worker)

    def learned_times(self, kind: str) -> Mapping[int, float]:
        kept = self.store.learned_times(self._spec.name).get(kind)
        return kept.run_s if kept else {}

    def _first_ended(self) -> list[Batch]:
        """The batches that stand before every other debt: where items end one by one, several ended since the last call."""
        batches: list[Batch] = []
        for debt in islice(self._debts, _MOST_TOGETHER):
            if not isinstance(debt, Batch):
                break
            batches.append(debt)
        return batches

    def _finish_all(self, batches: Sequence[Batch], request: ClaimRequest | None) -> Claim | None:
        began_at = time.monotonic()
        batches = self._with_large_outputs_stored(batches)
        settled, claim = self.store.finish_all([(batch.endings, batch.worker, batch.stamp) for batch in batches], request)
        failpoint("after_finish_before_reply")
        store_s = time.monotonic() - began_at
        for batch, answers in zip(batches, settled, strict=True):
            self._debts.popleft()
            self._on_settled(batch, answers, store_s)
        return claim

    def _settle(self, debt: Debt) -> None:
        match debt:
            case Said(reports):
                for report, answer in zip(reports, self.store.report(reports), strict=True):
                    if answer is Reported.CANCELLED:
                        self.unwanted.append(report.id)
                    elif answer is Reported.STALE:
                        self.lost.append((report.id, report.token))
            case Retry(item, worker):
                said = {"code": debt.code, "message": debt.message, "traceback": debt.traceback}
                given_back = self.store.retry([item], worker=worker, delay_s=debt.delay_s, **said)
                self._observers.notify(lambda observer: observer.on_given_back(self._spec, debt, given_back))
            case Release(items, worker):
                failpoint("in_release")
                given_back = self.store.release(items, worker=worker, reason=debt.reason, detail=debt.detail)
                self._observers.notify(lambda observer: observer.on_given_back(self._spec, debt, given_back))

    def _with_large_outputs_stored(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The first debts, with their large outputs moved to the blob store.

        D9: blob first, finish second. A crash between them leaves a blob that no record names, which is collected later; the
        reverse order would show a result whose output does not exist.
        """
        most = self._inline_bytes
        large = {blob_name(e): e.output.data for one in batches for e in one.endings if e.output and is_too_large(e, most)}
        if large:
            stored = dict(zip(large, self._blobs.append_all(list(large.items())), strict=True))
            batches = [replace(one, endings=tuple(self._with_blob(e, stored) for e in one.endings)) for one in batches]
            # After a lost reply these debts are settled again; their blobs are then already written.
            for place, batch in enumerate(batches):
                self._debts[place] = batch
        failpoint("after_blob_before_finish")
        return batches

    def _with_blob(self, ending: Ending, stored: Mapping[str, str]) -> Ending:
        if ending.output is None or not is_too_large(ending, self._inline_bytes):
            return ending
        return replace(ending, output=Payload(ending.output.content_type, blob=stored[blob_name(ending)]))

    def _on_settled(self, batch: Batch, answers: Sequence[Settled], store_s: float) -> None:
        unseen, needless = unneeded_blobs(batch, answers)
        if unseen:
            self._blobs.delete_all(unseen)
        if needless:
            self._needless.add(batch.queue, needless)
        stale = answers.count(Settled.STALE)
        if stale:
            log.warning(SETTLED_STALE, worker=batch.worker, items=stale, batch=batch.stamp.id)
        self.ended += len(batch.endings)
        if not stale and (tallies := self._observers.tallies):
            waited = [batch.leased_at - job.created_at for job in batch.jobs]
            noted = (batch.queue, batch.reason, time.monotonic() - batch.claimed_at, waited)
            for tally in tallies:
                tally.settled.append(noted)
        succeeded = all(ending.state is JobState.SUCCEEDED for ending in batch.endings)
        for observer in self._observers.of_batches if succeeded else self._observers.all:
            observer.on_settled(self._spec, batch, answers, store_s)

    def close(self) -> None:
        self.store.close()


class Debts:
    """What a slot owes the store, and whether the store is away."""

    def __init__(self, spec: ModelSpec, context: SlotContext) -> None:
        self._model = spec.name
        self._observers = context.observers
        self.absence = Absence()
        self.settlements = Settlements(spec, context.open_store(), context)
        # Running jobs whose end was asked for. Other threads append.
        self._unwanted: deque[JobId] = deque()

    def on_answer(self) -> None:
        """The store answered a call."""
        if self.absence.on_answer():
            log.info(STORE_BACK, model=self._model)

    def on_failure(self, error: StoreUnavailable) -> None:
        """The store did not answer a call."""
        if self.absence.on_failure(time.monotonic()):
            log.warning(STORE_AWAY, model=self._model, error=str(error))
        self._observers.notify(lambda observer: observer.on_store_failed("slot"))

    def owe(self, debt: Debt) -> None:
        self.settlements.owe(debt)

    @property
    def has_debts(self) -> bool:
        return self.settlements.has_debts

    @property
    def ended(self) -> int:
        """How many jobs the slot has ended."""
        return self.settlements.ended

    def give_up(self, jobs: Sequence[JobId]) -> None:
        """The end of these running jobs was requested."""
        self._unwanted.extend(jobs)

    def take_unwanted(self) -> tuple[set[JobId], set[AttemptKey]]:
        """Running jobs whose end was asked for, and attempts that run here and were lost, since the last call."""
        unwanted = {*_drained(self._unwanted), *_drained(self.settlements.unwanted)}
        return unwanted, set(_drained(self.settlements.lost))

    def close(self) -> None:
        self.settlements.close()


_Entry = TypeVar("_Entry")


def _drained(line: deque[_Entry]) -> Iterator[_Entry]:
    while line:
        yield line.popleft()


class Verdicts:
    """What becomes of a slot's batches: each verdict is a debt in `debts` and a report to the observers."""

    def __init__(self, spec: ModelSpec, debts: Debts, observers: Observers) -> None:
        self._spec = spec
        self._debts = debts
        self._observers = observers

    def without_unread(self, batch: Batch, done: BatchDone) -> tuple[Batch, BatchDone]:
        """What ran of the batch. The jobs whose files had not arrived are given back."""
        if self._spec.input_urls:
            batch, done, unread = sift_unread(batch, done)
            self.give_back([unread] if unread.jobs else [], ReleaseReason.READING)
        return batch, done

    def on_ran(self, batch: Batch, done: BatchDone) -> None:
        try:
            ended, retries = decide(batch, done, self._spec.limits)
        except InternalError:
            log.exception(SLOT_FAULT, model=self._spec.name)
            self.give_back([batch], ReleaseReason.CRASHED, _MISCOUNTED)
            return
        if ended.endings:
            self._debts.owe(ended)
        for retry in retries:
            self._debts.owe(retry)
        for tally in self._observers.tallies:
            tally.busy.append((batch.queue, done.inference_s if done.busy_s is None else done.busy_s))
        for observer in self._observers.of_batches:
            observer.on_ran(self._spec, batch, done)

    def on_lost(self, lost: BatchLost) -> None:
        batch = lost.batch
        log.warning(
            BATCH_LOST, model=self._spec.name, batch=batch.nonce, items=batch.size, cause=lost.cause.value, how=lost.how
        )
        if lost.cause is Cause.TIMED_OUT:
            message = f"ran longer than the model's max_run_s of {self._spec.limits.max_run_s:g} s and was stopped"
            self.fail(batch, batch.jobs, "timeout", message, stopped_stamp(batch, time.monotonic()))
        else:
            self.give_back([batch], ReleaseReason(lost.cause.value), lost.how)
        self._observers.notify(lambda observer: observer.on_lost(self._spec, lost.cause, batch))

    def fail(self, batch: Batch, jobs: Sequence[ClaimedJob], code: str, message: str, stamp: BatchStamp) -> None:
        self._debts.owe(fail(batch, jobs, code, message, stamp))

    def give_back(self, batches: Iterable[Batch], reason: ReleaseReason, detail: str = "") -> None:
        for batch in batches:
            self._debts.owe(release(batch, reason, detail))
