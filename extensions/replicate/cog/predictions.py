"""Predictions of a model as Cog's container makes them: waited for, in the background, or as a stream; found again by id."""

# D88: docs/design/gateway.md
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from fastapi import Request
from msgspec import structs

from penstock.broker.contract import JobIndex
from penstock.broker.partitions import queues_of_model
from penstock.errors import Gone, InvalidInput, MalformedId, NotFound
from penstock.extensions.replicate.cog.events import CogEvents
from penstock.extensions.replicate.cog.request import CogRequest, cog_request, is_prediction_id, key_of, tag_of
from penstock.extensions.replicate.gateway.outputs import shown_output
from penstock.extensions.replicate.gateway.predictions import shown_input
from penstock.extensions.replicate.gateway.request import in_words, wanted_letters
from penstock.extensions.replicate.gateway.views import cog_view
from penstock.extensions.webhooks.gateway.words import asked_webhook
from penstock.extensions.webhooks.webhook import AS_COG
from penstock.gateway.asgi import wire
from penstock.gateway.asgi.connection import ClientConnection, connection_of
from penstock.gateway.asgi.negotiation import read_head
from penstock.gateway.asgi.problems import NotAcceptable
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.events.encoding import SSE
from penstock.gateway.jobs.job_list import newest, records
from penstock.gateway.jobs.predict import answer_deadline
from penstock.gateway.jobs.results import ended, visible_job
from penstock.gateway.jobs.submitting.draft import Draft, SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.services import Services
from penstock.job import Job, JobId, JobState, Payload, parse_job_id

# Files stand in an answer up to this size in all; clients of Cog read each answer once.
INLINE_BYTES = 4 * 1024 * 1024
# A permit of the caller, for as long as it waits or reads.
Held = Callable[[Caller], AbstractContextManager[None]]


@dataclass
class AskedOfCog:
    """A request for a prediction. `named`: the id in its path. `wanted` is its body, which is read once the model is known; its
    input goes to the job, and `shown` keeps what the answer shows of it.
    """

    model: str
    named: str
    request: Request
    caller: Caller
    is_stream: bool
    wanted: CogRequest | None = None
    shown: orjson.Fragment | None = None

    @property
    def read(self) -> CogRequest:
        assert self.wanted is not None
        return self.wanted


class CogPredictions:
    """`_waiting` and `_streaming` are the permits of callers who wait for one answer, and of those who read a stream."""

    def __init__(self, services: Services) -> None:
        self._submitter = services.submitter
        self._limits = services.settings.gateway
        self._predict = services.predict
        self._store = services.store
        self._results = services.results
        self._uploads = services.uploads
        self._most_shown = services.settings.store.inline_input_bytes
        self._waiting = services.awaiting
        self._streaming = partial(services.streaming, instead_of=services.requests)

    async def checked(self, asked: AskedOfCog) -> tuple[SubmitRequest, Job | None]:
        """The request of a new prediction; and the one that its id names already, unless that ended without an output."""
        request = asked.request
        draft = Draft(
            model=asked.model,
            caller=asked.caller,
            kind="cog",
            is_awaited=True,
            input=partial(self._input, asked),
            options=partial(self._wanted, asked),
            headers=request.headers.raw,
            head=read_head(request.headers.raw),
            scope=request.scope,
            keeps_body=False,
        )
        settled = await self._submitter.settle(draft)
        draft, known = structs.replace(draft, settled=settled), None
        if asked.read.id:
            known = await self._newest(settled.model, asked.read.id, asked.caller)
            is_over = known is not None and known.state.final and known.state is not JobState.SUCCEEDED
            # As in Cog, a repeat is known by its id alone.
            draft = structs.replace(draft, key=key_of(asked.read.id, known if is_over else None), said=Payload(""))
            known = None if is_over else known
        return await self._submitter.prepare(draft), known

    async def _wanted(self, asked: AskedOfCog, entry: ModelEntry, version: VersionEntry) -> SubmitOptions:
        if asked.is_stream:
            _require_stream(entry.name, version)
        wanted = asked.wanted = cog_request(await wire.json_body(asked.request, self._limits, self._uploads), asked.named)
        url = wanted.webhook or ""
        letters = wanted_letters(url, wanted.webhook_events_filter, AS_COG)
        return SubmitOptions(tags=(tag_of(wanted.id),) if wanted.id else (), said=asked_webhook(url, letters))

    async def _input(self, asked: AskedOfCog, version: VersionEntry) -> Payload:
        given, asked.read.input = asked.read.input, {}
        asked.shown = shown_input(given, self._most_shown)
        data = orjson.dumps(given)
        del given
        try:
            return await self._submitter.inputs.json(data, version)
        except InvalidInput as error:
            raise in_words(error) from None

    async def answer_later(self, submit: SubmitRequest, known: Job | None, base: str) -> tuple[Job, dict[str, Any]]:
        """The job and its prediction as they are; a prediction that is stored now is `starting`."""
        if known is not None:
            return known, await self.view(known, base)
        submitted = await self._submitter.submit(submit, submit.new_job_id())
        job = await visible_job(self._store, submitted.id, submit.caller)
        return job, await self.view(job, base) | ({} if job.state.final else {"status": "starting"})

    async def answer(self, submit: SubmitRequest, known: Job | None, request: Request) -> Job:
        """The job after its end. Raises as a prediction does: `NoAnswerYet`, and `ClientGone` once the job is cancelled."""
        connection, deadline_s = connection_of(request.scope), answer_deadline(submit, self._limits.sync_timeout_s)
        with self._waiting(submit.caller):
            if known is not None:
                end = await self._predict.end_of_first(known.id, connection, deadline_s, request=submit)
            else:
                await self._require_worker(submit)
                end = await self._predict.end_of(submit, connection, deadline_s, kept_s=_kept_s(submit))
        return await visible_job(self._store, end.id, submit.caller)

    async def stream(
        self, submit: SubmitRequest, known: Job | None, send: wire.Send, connection: ClientConnection, base: str
    ) -> None:
        """Send the events of the prediction, new or known."""
        deadline_s = answer_deadline(submit, submit.model.info.limits.deadline_s)

        def encoder_of(job: JobId) -> CogEvents:
            own = submit.options.tags[0] if submit.options.tags else ""
            return CogEvents(own.removeprefix(tag_of("")) or str(job), lambda job_now: self.view(job_now, base))

        with self._streaming(submit.caller):
            if known is not None:
                await self._predict.follow(known.id, submit, encoder_of(known.id), send, connection)
                return
            await self._require_worker(submit)
            await self._predict.stream(submit, encoder_of, send, connection, deadline_s, kept_s=_kept_s(submit))

    async def cancel(self, entry: ModelEntry, prediction_id: str, caller: Caller) -> None:
        """Raises `NotFound` unless the caller has such a prediction of this model. One that has ended stays as it is."""
        job = await self._named(entry, prediction_id, caller)
        await self._store.cancel(job.id, owner=job.owner)

    async def view(self, job: Job, base: str) -> dict[str, Any]:
        output: Any = None
        if job.state is JobState.SUCCEEDED:
            try:
                output = await shown_output(self._results, ended(job), base, inline_bytes=INLINE_BYTES)
            except Gone:
                return {**cog_view(job, None), "data_removed": True}
        return cog_view(job, output)

    async def _require_worker(self, submit: SubmitRequest) -> None:
        if not submit.version.capacity.is_served:
            await self._predict.require_worker(submit)

    async def _named(self, entry: ModelEntry, prediction_id: str, caller: Caller) -> Job:
        absent = NotFound(f"model {entry.name!r} has no prediction {prediction_id[:80]!r}")
        if not is_prediction_id(prediction_id):
            raise absent
        newest_job = await self._newest(entry, prediction_id, caller)
        if newest_job is not None:
            return newest_job
        try:
            job = parse_job_id(prediction_id)
        except MalformedId:
            raise absent from None
        record = await self._store.read(job) if job.model == entry.name else None
        if record is None or not caller.sees(record.owner):
            raise absent
        return record

    async def _newest(self, entry: ModelEntry, prediction_id: str, caller: Caller) -> Job | None:
        """The newest prediction of this id that the caller may see."""
        tag, queues = tag_of(prediction_id), queues_of_model(entry.info)
        ids, _ = await newest(self._store, queues, JobIndex.TAGGED, caller, before=None, limit=1, tag=tag)
        return next(iter(await records(self._store, ids)), None)


def _require_stream(model: str, version: VersionEntry) -> None:
    if version.info is not None and not version.info.streams:
        raise NotAcceptable(
            f"model {model!r} does not yield, so it has no {SSE}", hint="Leave out Accept, or ask for application/json."
        )


def _kept_s(submit: SubmitRequest) -> float | None:
    """A prediction with an id is asked for again, so its result is kept as that of a job (D14)."""
    return submit.model.info.limits.result_ttl_s if submit.options.tags else None
