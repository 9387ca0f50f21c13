"""The caller's errors for jobs that the store refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.broker.backlog import delayed_full, queue_full
from penstock.broker.records import SubmitStatus, Submitted
from penstock.errors import KeyReused, PenstockError, QuotaSpent, StoreUnavailable

if TYPE_CHECKING:
    from penstock.gateway.jobs.extending import WordReader
    from penstock.gateway.jobs.submitting.draft import SubmitRequest


def refusal_of(request: SubmitRequest, submitted: Submitted, words: WordReader) -> PenstockError:
    """The error for a submit that the store refused."""
    limit = request.model.info.limits.max_queue_depth
    drain_s = request.model.backlog.drain_s(request.version.capacity, time.monotonic())
    if submitted.status is SubmitStatus.KEY_REUSED:
        return KeyReused(
            "this Idempotency-Key belongs to another request: the route, model, version, media type or body differs",
            hint="Use a new key for a new request; repeat a request byte for byte to get its first job.",
        )
    if submitted.status is SubmitStatus.QUOTA:
        return _quota_spent(request.caller.quota(limit), drain_s)
    if submitted.status in (SubmitStatus.RETIRED, SubmitStatus.MOVED):
        return StoreUnavailable(f"the queues of model {request.model.name!r} were changed again and again during this request")
    if (of_extension := words.refusal(submitted, request.model.name)) is not None:
        return of_extension
    if request.options.delay_s:
        return delayed_full(limit, drain_s=drain_s)
    return queue_full(submitted.depth, limit, drain_s=drain_s)


def _quota_spent(quota: int, drain_s: float) -> QuotaSpent:
    return QuotaSpent(
        f"this owner has {quota} open jobs of this model, which is its limit",
        retry_after_s=drain_s,
        hint="Wait until some have ended, or raise max_open_jobs of the key.",
    )
