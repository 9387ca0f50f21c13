"""What a slot trades with the store: ends of jobs for new ones, in one round trip where it can be."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol

import structlog

from penstock.backoff import Backoff, BackoffCounter
from penstock.broker.blobs.files import BlobStore
from penstock.broker.contract import ReleaseReason
from penstock.broker.records import BatchStamp, Claim, ClaimRequest, Ending, GiveBack, NewJob, Settled, Submitted
from penstock.failpoints import failpoint
from penstock.job import JobState, Payload
from penstock.job_id import new_job_id
from penstock.model_spec import ModelSpec
from penstock.workers.slot.celery_messages import Rejected, job_from
from penstock.workers.slot.outcomes import Accepted, Retry, blob_name, too_large

log = structlog.get_logger(__name__)
SETTLED_STALE = "settled_stale"
FOREIGN_REJECTED = "foreign_rejected"
_NO_LIMIT = 1_000_000_000
RETRY_MOST_S = 2.0
_BACKOFF = Backoff(0.1, RETRY_MOST_S, jitter=0.5)


class SlotStore(Protocol):
    """The part of `RedisStore` that a slot uses."""

    def submit(self, jobs: Sequence[NewJob], *, max_depth: int = ...) -> list[Submitted]: ...

    def claim(self, request: ClaimRequest) -> Claim: ...

    def finish(self, endings: Sequence[Ending], *, worker: str, stamp: BatchStamp) -> list[Settled]: ...

    def finish_and_claim(
        self, endings: Sequence[Ending], *, worker: str, stamp: BatchStamp, request: ClaimRequest
    ) -> tuple[list[Settled], Claim]: ...

    def retry(self, items: Sequence[GiveBack], *, worker: str, delay_s: float, code: str, message: str) -> list[Settled]: ...

    def release(self, items: Sequence[GiveBack], *, worker: str, reason: ReleaseReason, detail: str = ...) -> list[Settled]: ...

    def reject_foreign(self, model: str, message: bytes, *, celery_id: str, reason: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Finish:
    """`inputs`: per ending the blob of its input, or an empty name; left out where none is to be deleted.

    `accepted`: per ending when its job came in, for whoever counts.
    """

    endings: tuple[Ending, ...]
    worker: str
    stamp: BatchStamp
    inputs: tuple[str, ...] = ()
    accepted: tuple[Accepted, ...] = ()


@dataclass(frozen=True, slots=True)
class TryAgain:
    retry: Retry
    worker: str


@dataclass(frozen=True, slots=True)
class Release:
    """`detail`: how the process died, for those that crashed."""

    items: tuple[GiveBack, ...]
    worker: str
    reason: ReleaseReason
    detail: str = ""


Debt = Finish | TryAgain | Release
OnSettled = Callable[[Finish, Sequence[Settled], float], None]
OnGivenBack = Callable[[TryAgain | Release, Sequence[Settled]], None]


class Absence:
    """A store that is away, and when to try it again (monotonic): after 0.1 s, 0.2 s ... 2 s, each up to half shorter."""

    def __init__(self) -> None:
        self._failures = BackoffCounter(_BACKOFF)
        self.try_at = float("-inf")

    def failed(self, now: float) -> bool:
        """One more call without an answer; whether it is the first."""
        self.try_at = now + self._failures.count_failure(chance=random.random())
        return self._failures.failures == 1

    def over(self) -> bool:
        """The store answered; whether it was away before."""
        was_away = self._failures.failures > 0
        self._failures.reset()
        return was_away


class Settlements:
    """What is owed stays owed until the store took it: while Redis is away nothing is forgotten.

    Outputs over `inline_bytes` go to the blob store. `on_settled` is told what was settled, the answers and the
    seconds it took, `on_given_back` what went back.
    """

    def __init__(
        self,
        store: SlotStore,
        blobs: BlobStore,
        *,
        inline_bytes: int,
        on_settled: OnSettled,
        on_given_back: OnGivenBack = lambda debt, answers: None,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._inline_bytes = inline_bytes
        self._on_settled = on_settled
        self._on_given_back = on_given_back
        self._debts: deque[Debt] = deque()

    @property
    def owes(self) -> bool:
        return bool(self._debts)

    def owe(self, debt: Debt) -> None:
        self._debts.append(debt)

    def trade(self, request: ClaimRequest | None) -> Claim | None:
        """Settle all that is owed and take what is asked; raises `StoreUnavailable` with the unsettled rest still owed."""
        while self._debts:
            if request is not None and len(self._debts) == 1 and isinstance(self._debts[0], Finish):
                return self._finish_and_claim(self._debts[0], request)
            self._pay(self._debts[0])
            self._debts.popleft()
        return self._store.claim(request) if request is not None else None

    def _finish_and_claim(self, debt: Finish, request: ClaimRequest) -> Claim:
        began_at = monotonic()
        debt = self._stored(debt)
        settled, claim = self._store.finish_and_claim(debt.endings, worker=debt.worker, stamp=debt.stamp, request=request)
        failpoint("after_finish_before_reply")
        self._debts.popleft()
        self._note(debt, settled, monotonic() - began_at)
        return claim

    def _pay(self, debt: Debt) -> None:
        match debt:
            case Finish():
                began_at = monotonic()
                debt = self._stored(debt)
                settled = self._store.finish(debt.endings, worker=debt.worker, stamp=debt.stamp)
                failpoint("after_finish_before_reply")
                self._note(debt, settled, monotonic() - began_at)
            case TryAgain(retry, worker):
                answers = self._store.retry(
                    [retry.item], worker=worker, delay_s=retry.delay_s, code=retry.code, message=retry.message
                )
                self._on_given_back(debt, answers)
            case Release():
                failpoint("in_release")
                answers = self._store.release(debt.items, worker=debt.worker, reason=debt.reason, detail=debt.detail)
                self._on_given_back(debt, answers)

    def _stored(self, debt: Finish) -> Finish:
        """The same with large outputs in the blob store.

        Blob first, finish second: a crash between them leaves a blob that no record names, which is collected; the reverse
        shows a result that is not there.
        """
        large = {blob_name(e): e.output.data for e in debt.endings if e.output and too_large(e, self._inline_bytes)}
        if large:
            self._blobs.put_all(list(large.items()))
            debt = replace(debt, endings=tuple(map(self._with_blob, debt.endings)))
            # A repeat after a lost reply need not write them again.
            self._debts[0] = debt
        failpoint("after_blob_before_finish")
        return debt

    def _with_blob(self, ending: Ending) -> Ending:
        if ending.output is None or not too_large(ending, self._inline_bytes):
            return ending
        return replace(ending, output=Payload(ending.output.content_type, blob=blob_name(ending)))

    def _note(self, debt: Finish, settled: Sequence[Settled], store_s: float) -> None:
        self._blobs.delete_all(unneeded(debt, settled))
        stale = sum(answer is Settled.STALE for answer in settled)
        if stale:
            log.warning(SETTLED_STALE, worker=debt.worker, items=stale, batch=debt.stamp.id)
        self._on_settled(debt, settled, store_s)

    def adopt(self, claim: Claim, spec: ModelSpec, default_version: str) -> None:
        """Stock Celery messages that a claim found become jobs; those that cannot are answered.

        They stood in the queue before, so no limit of depth applies.
        """
        read = [
            job_from(message, new_job_id(spec.name), spec=spec, default_version=default_version, now=claim.now)
            for message in claim.foreign
        ]
        jobs = [item for item in read if isinstance(item, NewJob)]
        for item in read:
            if isinstance(item, Rejected):
                log.warning(FOREIGN_REJECTED, model=spec.name, reason=item.reason)
                self._store.reject_foreign(spec.name, item.message, celery_id=item.celery_id, reason=item.reason)
        if jobs:
            self._store.submit(jobs, max_depth=_NO_LIMIT)

    def close(self) -> None:
        self._store.close()


def unneeded(debt: Finish, settled: Sequence[Settled]) -> list[str]:
    """Blobs to delete once a batch is settled: outputs that nobody will see, and inputs of jobs that need them no more.

    At once and not at the end of retention: the next file then takes the pages of the deleted one, which is cheaper than fresh
    ones. A stale item is somebody else's now, and so is its input.
    """
    blobs: list[str] = []
    inputs = debt.inputs or ("",) * len(debt.endings)
    for ending, answer, given in zip(debt.endings, settled, inputs, strict=True):
        output = ending.output
        if answer in (Settled.STALE, Settled.CANCELLED) and output is not None and output.blob:
            blobs.append(output.blob)
        if given and (answer is Settled.CANCELLED or (answer is not Settled.STALE and ending.state is JobState.SUCCEEDED)):
            blobs.append(given)
    return blobs
