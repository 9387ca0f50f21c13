"""What became of the events of jobs and runs: their delivery logs, and those that could not be delivered."""

# D92: docs/design/webhooks.md
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.broker.partitions import queues_of_model
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import prefix
from penstock.broker.store.run_ops import RUNS_KEY
from penstock.errors import BadRequest, NotFound
from penstock.extensions.openai.gateway.views import BATCH_PREFIX
from penstock.extensions.webhooks.contract import DeliveryAttempt, EventLog
from penstock.extensions.webhooks.store.outbox import AsyncOutbox
from penstock.extensions.webhooks.webhook import event_id
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.results import visible_job
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.runs.service import RunService
from penstock.job import job_in, model_of, parse_job_id
from penstock.outbound.urls import parse_url

MAX_PAGE = 200
MAX_IDS = 1_000


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """The last event of a job or run. `id` is that of the job or run; `url` is without its query, which may hold a key."""

    id: str
    model: str
    url: str
    log: EventLog

    @property
    def last(self) -> DeliveryAttempt | None:
        return self.log.attempts[-1] if self.log.attempts else None


@dataclass(frozen=True, slots=True)
class EventPage:
    """`next_after` continues the list; empty at its end."""

    events: list[LoggedEvent]
    next_after: str = ""


class Deliveries:
    """Callers see the events of jobs and runs that they may see, and manage those."""

    def __init__(self, store: AsyncStore, registry: ModelRegistry, runs: RunService) -> None:
        self._store = store
        self._registry = registry
        self._runs = runs

    async def of_job(self, job_id: str, caller: Caller) -> LoggedEvent:
        """Raises `NotFound` for a job without a webhook too."""
        job = await visible_job(self._store, parse_job_id(job_id), caller)
        logs = await self._outbox(job.id.queue).logs([job.id.serial])
        if not logs:
            raise NotFound(f"job {job.id} has no webhook")
        return _logged(job.id.serial, job.id.queue, logs[job.id.serial])

    async def of_run(self, run_id: str, caller: Caller) -> LoggedEvent:
        """The same for a run, or for a batch, which is one."""
        run = await self._runs.visible(run_id.removeprefix(BATCH_PREFIX), caller)
        logs = await self._outbox("").logs([run.id])
        if not logs:
            raise NotFound(f"run {run.id} has no webhook")
        return _logged(run.id, "", logs[run.id])

    async def undelivered(self, caller: Caller, *, after: str = "", limit: int = 100) -> EventPage:
        """Those that were given up, newest first. `after` is the id of the last one of the page before."""
        owner, before = caller.only_owner or "", _serial(after)
        queues = ["", *(queue for entry in self._registry.models.values() for queue in queues_of_model(entry.info))]

        async def ask(queue: str) -> list[tuple[str, str]]:
            page = await self._outbox(queue).undelivered(owner=owner, before=before, limit=limit + 1)
            return [(one, queue) for one in page]

        events = sorted((one for page in await asyncio.gather(*map(ask, queues)) for one in page), reverse=True)
        shown = await self._logs(events[:limit])
        return EventPage(shown, _public_id(*events[limit - 1]) if len(events) > limit else "")

    async def send_again(self, ids: Sequence[str], caller: Caller) -> int:
        """Send the last events of these jobs and runs once more, if they were delivered or given up; returns how many."""
        owner = caller.only_owner
        return sum([await self._outbox(queue).send_again(own, owner=owner) for queue, own in _by_queue(ids).items()])

    async def dismiss(self, ids: Sequence[str], caller: Caller) -> int:
        """Take events that were given up off the list; returns how many."""
        owner = caller.only_owner
        return sum([await self._outbox(queue).dismiss(own, owner=owner) for queue, own in _by_queue(ids).items()])

    async def _logs(self, events: Sequence[tuple[str, str]]) -> list[LoggedEvent]:
        ids: dict[str, list[str]] = {}
        for one, queue in events:
            ids.setdefault(queue, []).append(one)

        async def ask(queue: str) -> dict[tuple[str, str], EventLog]:
            return {(one, queue): log for one, log in (await self._outbox(queue).logs(ids[queue])).items()}

        logs = {key: log for page in await asyncio.gather(*map(ask, ids)) for key, log in page.items()}
        return [_logged(one, queue, logs[one, queue]) for one, queue in events if (one, queue) in logs]

    def _outbox(self, queue: str) -> AsyncOutbox:
        """The outbox of a queue; that of runs for an empty name."""
        return AsyncOutbox(self._store, prefix(queue) if queue else RUNS_KEY)


def log_view(event: LoggedEvent) -> dict[str, Any]:
    log = event.log
    view: dict[str, Any] = {
        "id": event.id,
        "url": event.url,
        "state": log.state.value,
        "event": log.event or None,
        "webhook_id": event_id(_serial(event.id), log.number) if log.event else None,
        "at": None if log.at is None else rfc3339(log.at),
        "attempts": [
            {
                "at": rfc3339(one.at),
                "event": one.event,
                "webhook_id": event_id(_serial(event.id), one.number),
                "tried": one.tried,
                "outcome": str(one.outcome),
                "answer": one.answer,
                "took_s": one.took_s,
            }
            for one in log.attempts
        ],
    }
    return {name: value for name, value in view.items() if value is not None}


def _serial(public: str) -> str:
    """That of a job's id; the id of a run is one."""
    return public.partition("-")[0].partition(".")[0]


def _logged(event: str, queue: str, log: EventLog) -> LoggedEvent:
    return LoggedEvent(_public_id(event, queue), model_of(queue), str(parse_url(log.url)), log)


def _public_id(event: str, queue: str) -> str:
    return str(job_in(event, queue)) if queue else event


def _by_queue(ids: Sequence[str]) -> dict[str, list[str]]:
    """The serials of jobs by queue, and under an empty name the ids of runs. Raises `BadRequest` for one that is neither."""
    ids = list(dict.fromkeys(ids))
    if not 1 <= len(ids) <= MAX_IDS:
        raise BadRequest(f"ids names {len(ids)} jobs and runs; one request takes 1 to {MAX_IDS}")
    by_queue: dict[str, list[str]] = {}
    for one in (given.removeprefix(BATCH_PREFIX) for given in ids):
        is_run = "-" not in one and one.isascii() and one.isalnum() and len(one) <= 64
        job = None if is_run else parse_job_id(one)
        by_queue.setdefault(job.queue if job else "", []).append(job.serial if job else one)
    return by_queue
