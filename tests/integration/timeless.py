"""Answers of a store without their times, so that those of two stores can be compared."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

from penstock.broker.records import Claim, ClaimedJob, Followed, LeaseRenewal
from penstock.extensions.webhooks.contract import DueEvents, EventLog
from penstock.job import Job


def timeless(answer: Any) -> Any:
    """Return an answer without its times, and without the order that the stores leave open."""
    if isinstance(answer, list | tuple) and not hasattr(answer, "_fields"):
        return type(answer)(timeless(part) for part in answer)
    if isinstance(answer, Job):
        return replace(
            answer,
            created_at=0.0,
            deadline_at=0.0,
            not_before=bool(answer.not_before),
            started_at=bool(answer.started_at),
            finished_at=bool(answer.finished_at),
            tries=tuple(replace(tried, claimed_at=0.0, ended_at=bool(tried.ended_at)) for tried in answer.tries),
            left_out=replace(answer.left_out, spent_s=0.0),
            queued_behind=0,
            progress=answer.progress and replace(answer.progress, at=0.0),
        )
    if isinstance(answer, Claim):
        return replace(
            answer,
            now=0.0,
            retry_in_s=answer.retry_in_s is None,
            jobs=timeless(answer.jobs),
            changes=tuple(sorted(set(answer.changes), key=repr)),
        )
    if isinstance(answer, Followed):
        return replace(answer, job=timeless(answer.job))
    if isinstance(answer, ClaimedJob):
        return replace(answer, created_at=0.0, deadline_at=0.0)
    if isinstance(answer, LeaseRenewal):
        return answer.lost, frozenset(answer.cancelled), frozenset(answer.overrun)
    return _timeless_totals(answer)


def _timeless_events(answer: Any) -> Any:
    if isinstance(answer, DueEvents):
        return sorted(astuple(replace(event, at=0.0)) for event in answer.events), answer.next_in_s is None
    if isinstance(answer, dict):
        return {key: _timeless_events(value) for key, value in answer.items()}
    if isinstance(answer, EventLog):
        return replace(answer, at=0.0, attempts=tuple(replace(attempt, at=0.0) for attempt in answer.attempts))
    return answer


def _timeless_totals(answer: Any) -> Any:
    if hasattr(answer, "workers_lost"):
        return replace(
            answer,
            workers_lost=frozenset(answer.workers_lost),
            blobs=frozenset(answer.blobs),
            changes=tuple(sorted(set(answer.changes), key=repr)),
        )
    if hasattr(answer, "oldest_age_s"):
        return replace(answer, now=0.0, oldest_age_s={}, counters={k: v for k, v in answer.counters.items() if v})
    return _timeless_events(answer)
