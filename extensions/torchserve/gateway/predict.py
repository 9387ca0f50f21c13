"""TorchServe's inference routes: a request becomes a job of its model, and the job's end an answer as TorchServe gives it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from penstock.errors import BadRequest
from penstock.extensions.torchserve.gateway.answer import TorchServeAnswers, WaitingRequest
from penstock.extensions.torchserve.gateway.errors import no_path
from penstock.extensions.torchserve.gateway.refusals import word_refusals
from penstock.extensions.torchserve.gateway.request import (
    form_fields_of,
    model_name_in,
    of_version,
    own_options,
    query_fields,
    read_again,
    with_fields,
)
from penstock.extensions.torchserve.gateway.routes import INVOCATIONS, TorchServeTarget
from penstock.gateway.asgi.connection import connection_of
from penstock.gateway.asgi.negotiation import JSON, Head, is_streamed, refuse_encoded
from penstock.gateway.asgi.wire import Receive, Scope, Send, read_body
from penstock.gateway.jobs.predict import answer_deadline
from penstock.gateway.jobs.submitting.draft import Draft, SubmitRequest
from penstock.gateway.jobs.submitting.form_input import input_of
from penstock.gateway.jobs.submitting.submit_options import NO_OPTIONS, SubmitOptions, options_in
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.gateway.services import Services
from penstock.inputs.form import FormPart
from penstock.job import JobState, Payload
from penstock.settings.gateway import GatewaySettings


class TorchServePredictions:
    """Answers one request of a target."""

    def __init__(self, services: Services, answers: TorchServeAnswers) -> None:
        self._predict = services.predict
        self._limits = services.settings.gateway
        self._submitter = services.submitter
        self._registry = services.registry
        self._answers = answers
        self._uploads = services.uploads
        # The permit of a client whose answer comes in chunks.
        self._streaming = partial(services.streaming, instead_of=services.predictions)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, head: Head, target: TorchServeTarget) -> int:
        """Returns the status code that was sent."""
        started = time.perf_counter()
        target, request = await self._read(scope, receive, head, target)
        if not request.version.capacity.is_served:
            await self._predict.require_worker(request)
        # A client of TorchServe waits for as long as its request may take.
        deadline_s = answer_deadline(request, request.model.info.limits.deadline_s)
        accept, connection = head.get(b"accept", b""), connection_of(scope)
        status, batch, waiting = 200, None, WaitingRequest(request, scope, send, head, started)
        if is_streamed(accept):
            ended = await self._predict.stream_as_accepted(request, accept, send, connection, deadline_s)
            if ended is None or ended.state is not JobState.SUCCEEDED:
                return status
            batch = ended.batch
        elif is_chunked(request):
            with self._streaming(request.caller):
                status = await self._answers.send_chunks(waiting, deadline_s)
        else:
            end = await self._predict.end_of(request, connection, deadline_s)
            status, batch = await self._answers.send(waiting, end), end.batch
        self._predict.count_answer(target.model, target.version, batch, time.perf_counter() - started)
        return status

    async def _read(
        self, scope: Scope, receive: Receive, head: Head, target: TorchServeTarget
    ) -> tuple[TorchServeTarget, SubmitRequest]:
        """The request, read and checked, and its target with the name of the model; raises on the first fault."""
        fields = query_fields(scope["query_string"]) if target.has_fields else []
        if not target.model and target.route != INVOCATIONS:
            raise no_path()
        if not target.model:
            target, receive = await self._invoked(scope, receive, head, target, fields)
        draft = Draft(
            model=target.model,
            version=target.version,
            caller=scope["caller"],
            kind=target.route,
            is_awaited=True,
            input=partial(self._input, scope, receive, head, fields),
            options=partial(self._options_of, scope["query_string"], target),
            headers=scope["headers"],
            head=head,
            scope=scope,
            keeps_body=False,
        )
        settled = await self._submitter.settle(draft)
        return target, await self._submitter.prepare(of_version(draft, settled, target, head[b"x-request-id"]))

    async def _options_of(
        self, query: bytes, target: TorchServeTarget, entry: ModelEntry, version: VersionEntry
    ) -> SubmitOptions:
        self._predict.count_request(target.model, target.version)
        own = own_options(query, entry.info.query) if query and not target.has_fields else b""
        return await options_in(own)(entry, version) if own else NO_OPTIONS

    async def _invoked(
        self, scope: Scope, receive: Receive, head: Head, target: TorchServeTarget, fields: Sequence[FormPart]
    ) -> tuple[TorchServeTarget, Receive]:
        """The target with the model that a field names, or that is the only one; and the body, from its start."""
        only = self._registry.declared_names()
        model = model_name_in(fields) or (only[0] if len(only) == 1 else "")
        if not model:
            body = await self._body(receive, head, scope)
            # A form may be as large as any body.
            parts = await asyncio.to_thread(form_fields_of, body, _media(head))
            model, receive = model_name_in(parts), read_again(body)
        if not model:
            raise BadRequest("Parameter model_name is required.")
        named = target._replace(model=model)
        word_refusals(scope, named)
        return named, receive

    async def _input(
        self, scope: Scope, receive: Receive, head: Head, fields: Sequence[FormPart], version: VersionEntry
    ) -> Payload:
        if not fields:
            return await self._submitter.inputs.body(scope, receive, head, version)
        refuse_encoded(head)
        body = await self._body(receive, head, scope)
        payload = await asyncio.to_thread(_form_input, fields, body, _media(head), version, self._limits)
        if payload.content_type == JSON:
            await self._submitter.inputs.check(payload, version)
        return payload

    async def _body(self, receive: Receive, head: Head, scope: Scope) -> bytes:
        return await read_body(scope, receive, head, limit=self._limits.max_raw_bytes, memory=self._uploads)


def is_chunked(request: SubmitRequest) -> bool:
    """Whether an answer is sent piece by piece: where the model's own code writes the pieces, as TorchServe's handlers do."""
    return request.version.takes_raw and request.version.info is not None and request.version.info.streams


def _form_input(fields: Sequence[FormPart], body: bytes, media: str, version: VersionEntry, limits: GatewaySettings) -> Payload:
    # For a model of penstock's own, an empty body is not a field.
    parts = with_fields(fields, body, media) if body or version.takes_raw else fields
    return input_of(parts, version, limits)


def _media(head: Head) -> str:
    return head.get(b"content-type", b"").decode("latin-1")
