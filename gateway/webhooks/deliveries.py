"""What became of the events of jobs and runs: their delivery logs, and those that could not be delivered."""

# D92: docs/design/webhooks.md
from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.ops import prefix
from penstock.broker.store.outbox import AsyncOutbox
from penstock.broker.store.run_ops import RUNS_KEY
from penstock.broker.webhook_contract import DeliveryAttempt, EventLog
from penstock.errors import BadRequest, NotFound
from penstock.gateway.asgi.wire import rfc3339
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.results import visible_job
from penstock.gateway.models.registry import ModelRegistry
from penstock.gateway.openai.views import BATCH_PREFIX
from penstock.gateway.runs.service import RunService
from penstock.job import parse_job_id
from penstock.outbound.urls import parse_url
from penstock.outbound.webhook import event_id

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
        logs = await self._outbox(job.model).logs([job.id.serial])
        if not logs:
            raise NotFound(f"job {job.id} has no webhook")
        return _logged(job.id.serial, job.model, logs[job.id.serial])

    async def of_run(self, run_id: str, caller: Caller) -> LoggedEvent:
        """The same for a run, or for a batch, which is one."""
        run = await self._runs.visible(run_id.removeprefix(BATCH_PREFIX), caller)
        logs = await self._outbox("").logs([run.id])
        if not logs:
            raise NotFound(f"run {run.id} has no webhook")
        return _logged(run.id, "", logs[run.id])

    async def undelivered(self, caller: Caller, *, after: str = "", limit: int = 100) -> EventPage:
        """Those that were given up, newest first. `after` is the id of the last one of the page before."""
        owner, before = "" if caller.sees("\0") else caller.owner, after.partition("-")[0]
        models = ["", *self._registry.models]
        pages = await asyncio.gather(
            *(self._outbox(model).undelivered(owner=owner, before=before, limit=limit + 1) for model in models)
        )
        found = sorted(((one, model) for model, page in zip(models, pages, strict=True) for one in page), reverse=True)
        shown = await self._logs(found[:limit])
        return EventPage(shown, _public_id(*found[limit - 1]) if len(found) > limit else "")

    async def send_again(self, ids: Sequence[str], caller: Caller) -> int:
        """Send the last events of these jobs and runs once more, if they were delivered or given up; returns how many."""
        owner = None if caller.sees("\0") else caller.owner
        return sum([await self._outbox(model).send_again(own, owner=owner) for model, own in _by_model(ids).items()])

    async def dismiss(self, ids: Sequence[str], caller: Caller) -> int:
        """Take events that were given up off the list; returns how many."""
        owner = None if caller.sees("\0") else caller.owner
        return sum([await self._outbox(model).dismiss(own, owner=owner) for model, own in _by_model(ids).items()])

    async def _logs(self, found: Sequence[tuple[str, str]]) -> list[LoggedEvent]:
        models = dict.fromkeys(model for _, model in found)
        ids = {model: [one for one, own in found if own == model] for model in models}
        pages = await asyncio.gather(*(self._outbox(model).logs(ids[model]) for model in models))
        logs = dict(zip(models, pages, strict=True))
        return [_logged(one, model, logs[model][one]) for one, model in found if one in logs[model]]

    def _outbox(self, model: str) -> AsyncOutbox:
        """The outbox of a model; that of runs for an empty name."""
        return AsyncOutbox(self._store, prefix(model) if model else RUNS_KEY)


def log_view(event: LoggedEvent) -> dict[str, Any]:
    log = event.log
    view: dict[str, Any] = {
        "id": event.id,
        "url": event.url,
        "state": log.state.value,
        "event": log.event or None,
        "webhook_id": event_id(event.id.partition("-")[0], log.number) if log.event else None,
        "at": None if log.at is None else rfc3339(log.at),
        "attempts": [
            {
                "at": rfc3339(one.at),
                "event": one.event,
                "webhook_id": event_id(event.id.partition("-")[0], one.number),
                "tried": one.tried,
                "outcome": str(one.outcome),
                "answer": one.answer,
                "took_s": one.took_s,
            }
            for one in log.attempts
        ],
    }
    return {name: value for name, value in view.items() if value is not None}


def _logged(event: str, model: str, log: EventLog) -> LoggedEvent:
    return LoggedEvent(_public_id(event, model), model, str(parse_url(log.url)), log)


def _public_id(event: str, model: str) -> str:
    return f"{event}-{model}" if model else event


def _by_model(ids: Sequence[str]) -> dict[str, list[str]]:
    """The serials of jobs by model, and under an empty name the ids of runs. Raises `BadRequest` for one that is neither."""
    ids = list(dict.fromkeys(ids))
    if not 1 <= len(ids) <= MAX_IDS:
        raise BadRequest(f"ids names {len(ids)} jobs and runs; one request takes 1 to {MAX_IDS}")
    found: dict[str, list[str]] = {}
    for one in (given.removeprefix(BATCH_PREFIX) for given in ids):
        is_run = "-" not in one and one.isascii() and one.isalnum() and len(one) <= 64
        serial, model = (one, "") if is_run else parse_job_id(one)
        found.setdefault(model, []).append(serial)
    return found
