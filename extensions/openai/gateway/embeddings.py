"""POST /v1/embeddings: one interactive job per input, stored together and answered together (D41)."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request
from msgspec import structs
from starlette.responses import Response

from penstock.broker.records import Push, Submitted
from penstock.broker.store.notifications import Waiter
from penstock.errors import BadParameter
from penstock.extensions.openai.embedding import EmbeddingRequest, answer_of, read_request, vector_of
from penstock.gateway.asgi.connection import ClientConnection, connection_of
from penstock.gateway.asgi.negotiation import JSON, read_head
from penstock.gateway.asgi.problems import Explanation, NoAnswerYet
from penstock.gateway.asgi.wire import ClientGone, json_body
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.jobs.predict import LAST_PUSH_S, answer_deadline
from penstock.gateway.jobs.submitting.draft import Draft, SubmitRequest
from penstock.gateway.models.registry import VersionEntry
from penstock.gateway.services import Services
from penstock.job import JobId, Payload

_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["model", "input"],
                "properties": {
                    "model": {"type": "string"},
                    "input": {"description": "A text, a list of texts, token ids, or a list of lists of them"},
                    "encoding_format": {"enum": ["float", "base64"]},
                    "dimensions": {"type": "integer", "description": "Refused unless the model has this dimension"},
                    "user": {"type": "string"},
                },
            }
        }
    },
}
EXPLANATIONS = {
    "not_an_embedding": Explanation(
        "500 of an answer-now request, else 409",
        "`POST /v1/embeddings` was sent to a model whose output is no list of numbers.",
        "Name a model that gives vectors, or call this one by `POST /predictions/{model}`.",
    ),
}


class Embeddings:
    """The route of /v1/embeddings."""

    def __init__(self, services: Services) -> None:
        self._held = services.awaiting
        self._predict = services.predict
        self._submitter = services.submitter
        self._limits = services.settings.gateway
        self._store = services.store
        self._results = services.results
        self._lifetime = services.lifetime
        self._uploads = services.uploads

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        router.add_api_route(
            "/v1/embeddings",
            self.answer,
            methods=["POST"],
            tags=["predictions"],
            summary="Texts as vectors, in OpenAI's form",
            openapi_extra={"requestBody": _BODY},
        )
        return router

    async def answer(self, request: Request, caller: CallerParam) -> Response:
        with self._submitter.counting():
            wanted = read_request(await json_body(request, self._limits, self._uploads))
        requests = await self._requests(wanted, caller, request)
        jobs = [request.new_job_id() for request in requests]
        try:
            with self._held(caller):
                ends = await self._ends(requests, jobs, connection_of(request.scope))
        except BaseException:
            # The inputs are answered together or not at all, so the jobs of the other inputs are of no use.
            await self._submitter.cancel_all(jobs, caller)
            raise
        vectors = [vector_of(_value(await self._results.output(end)), wanted.model) for end in ends]
        headers = {"x-penstock-job": str(jobs[0]), "x-penstock-version": requests[0].version.name}
        return Response(orjson.dumps(answer_of(wanted, vectors)), media_type=JSON, headers=headers)

    async def _requests(self, wanted: EmbeddingRequest, caller: Caller, request: Request) -> list[SubmitRequest]:
        """One request per input, all checked before the first is stored."""
        draft = Draft(
            model=wanted.model,
            caller=caller,
            kind="embeddings",
            is_awaited=True,
            headers=request.headers.raw,
            head=read_head(request.headers.raw),
            scope=request.scope,
            # One request may be many jobs, which are answered together: it has no repeat.
            key="",
        )
        draft = structs.replace(draft, settled=await self._submitter.settle(draft))
        drafts = [structs.replace(draft, input=partial(self._input, wanted, at)) for at in range(len(wanted.inputs))]
        requests = [await self._submitter.prepare(one) for one in drafts]
        if not requests[0].version.capacity.ready_slots:
            await self._predict.require_worker(requests[0])
        return requests

    async def _input(self, wanted: EmbeddingRequest, at: int, version: VersionEntry) -> Payload:
        given = wanted.inputs[at]
        if wanted.tokens and not at and not (version.validator is None or version.validator.is_valid(given)):
            raise BadParameter(f"model {wanted.model!r} takes texts, not token ids", param="input")
        return await self._submitter.inputs.json(orjson.dumps(given), version)

    async def _ends(self, requests: list[SubmitRequest], jobs: list[JobId], connection: ClientConnection) -> list[Push]:
        """The end of each job, in order. Raises what a submit raises, `NoAnswerYet`, or `ClientGone` if the client hangs up."""
        deadline_s = answer_deadline(requests[0], self._limits.sync_timeout_s)
        ttl_s, until = requests[0].model.info.limits.sync_result_ttl_s, time.monotonic() + deadline_s + LAST_PUSH_S
        with ExitStack() as open_waiters:
            waiters = [open_waiters.enter_context(self._store.waiter(job)) for job in jobs]
            stored = await asyncio.gather(
                *(
                    self._submitter.store(request, job, deadline_s=deadline_s, result_ttl_s=ttl_s, reply_to=self._store.channel)
                    for request, job in zip(requests, jobs, strict=True)
                ),
                return_exceptions=True,
            )
            refused = next((outcome for outcome in stored if isinstance(outcome, BaseException)), None)
            if refused is not None:
                raise refused
            # A job that was meant for a partition that is closed by now has another id. A push that came before is made up for.
            new = [one.id for one in stored if isinstance(one, Submitted)]
            moved = [open_waiters.enter_context(self._store.waiter(job)) for job in new if job not in jobs]
            waiters = [moved.pop(0) if job not in jobs else own for own, job in zip(waiters, new, strict=True)]
            jobs[:] = new
            return await self._wait(list(zip(waiters, jobs, strict=True)), until, connection)

    async def _wait(self, open_jobs: list[tuple[Waiter, JobId]], until: float, connection: ClientConnection) -> list[Push]:
        ends = []
        for waiter, job in open_jobs:
            left_s = max(0.0, until - time.monotonic())
            connection.on_lost = waiter.wake
            end = await waiter.next_end(left_s, stop=lambda: connection.lost or self._lifetime.is_last_call())
            if end is None and connection.lost:
                raise ClientGone
            if end is None:
                raise NoAnswerYet(f"job {job} did not end in the time allowed for an answer", job=job)
            ends.append(end)
        return ends


def _value(output: Payload) -> Any:
    try:
        return orjson.loads(output.data)
    except orjson.JSONDecodeError:
        return None
