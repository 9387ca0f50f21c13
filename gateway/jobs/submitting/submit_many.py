"""POST /v1/models/{model}[/versions/{version}]/jobs:batch: one job for each input of a JSON array or of JSON Lines.

The jobs are independent of each other. They are stored in groups that share a call and a sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import orjson
from fastapi import APIRouter, Query, Request
from msgspec import structs
from starlette.responses import Response

from penstock.broker.records import SubmitStatus, Submitted
from penstock.broker.store.group_commit import MAX_ITEMS
from penstock.errors import BadRequest, InvalidInput, PenstockError, UnsupportedMedia
from penstock.gateway.asgi import negotiation
from penstock.gateway.asgi.negotiation import JSON, Head
from penstock.gateway.asgi.problems import members_of, status_of
from penstock.gateway.asgi.wire import Receive, json_response, read_body, too_large
from penstock.gateway.auth.keys import FURTHER_JOB_COST, Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.jobs.results import first_is_gone
from penstock.gateway.jobs.schemas import JOB_PARAMETERS
from penstock.gateway.jobs.submitting.draft import Draft, SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import options_in
from penstock.gateway.jobs.views import accepted_body, job_view
from penstock.gateway.models.registry import VersionEntry
from penstock.job import Payload

if TYPE_CHECKING:
    from penstock.gateway.services import Services

MAX_INPUTS = 1_000
MAX_ERRORS = 10
LINES = ("application/x-ndjson", "application/jsonl")
# Inputs checked in one turn of the event loop, which other requests wait for.
_CHECKED_AT_ONCE = 32
_array = msgspec.json.Decoder(list[msgspec.Raw])
_KEY_MOST = 240
_OWN = ("partial",)
_BODY = {
    "required": True,
    "content": {
        "application/json": {"schema": {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": {}}},
        LINES[0]: {"schema": {"type": "string", "description": "One input per line"}},
    },
}
_ANSWER = {
    "type": "object",
    "required": ["data", "accepted", "refused"],
    "properties": {
        "data": {
            "type": "array",
            "description": "One entry per input, in order: its `index` and the job, or its `index` and an `error`",
            "items": {"type": "object", "required": ["index"], "properties": {"index": {"type": "integer"}}},
        },
        "accepted": {"type": "integer"},
        "refused": {"type": "integer"},
    },
}
PartialParam = Annotated[Literal["true", "false"], Query(description="Store the good inputs although others are refused")]
Prepared = list[SubmitRequest | PenstockError]


class SubmitMany:
    def __init__(self, services: Services) -> None:
        self._submitter = services.submitter
        self._limits = services.settings.gateway
        self._store = services.store
        self._uploads = services.uploads
        self._charge = services.auth.admit

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response)
        for path, endpoint in (
            ("/v1/models/{model}/jobs:batch", self.answer),
            ("/v1/models/{model}/versions/{version}/jobs:batch", self.answer_version),
        ):
            router.add_api_route(
                path,
                endpoint,
                methods=["POST"],
                tags=["jobs"],
                summary="One job per input",
                status_code=202,
                openapi_extra={"requestBody": _BODY, "parameters": JOB_PARAMETERS},
                responses={202: {"description": "Stored", "content": {JSON: {"schema": _ANSWER}}}},
            )
        return router

    async def answer(self, model: str, request: Request, caller: CallerParam, partial: PartialParam = "false") -> Response:
        return await self.answer_version(model, "", request, caller, partial)

    async def answer_version(
        self, model: str, version: str, request: Request, caller: CallerParam, partial: PartialParam = "false"
    ) -> Response:
        head = negotiation.read_head(request.headers.raw)
        key = _key(head)
        draft = Draft(
            model=model,
            version=version,
            caller=caller,
            kind="jobs:batch",
            is_awaited=False,
            options=options_in(request.scope["query_string"], of_route=_OWN),
            headers=request.headers.raw,
            head=head,
            scope=request.scope,
        )
        draft = structs.replace(draft, settled=await self._submitter.settle(draft))
        with self._submitter.counting(model):
            inputs = await self._inputs(request, head)
        self._charge_for(request, head, len(inputs))
        requests = await self._prepared(inputs, draft, key)
        is_whole = partial == "false"
        if is_whole:
            _refuse_all(requests)
        outcomes = await self._stored(requests, caller, is_whole=is_whole, may_repeat=bool(key))
        made = zip(requests, outcomes, strict=True)
        rows = await asyncio.gather(*(self._row(index, *pair) for index, pair in enumerate(made)))
        refused = sum("error" in row for row in rows)
        return json_response({"data": rows, "accepted": len(rows) - refused, "refused": refused}, status=202)

    async def _row(
        self, index: int, request: SubmitRequest | PenstockError, outcome: Submitted | PenstockError
    ) -> dict[str, Any]:
        if isinstance(outcome, PenstockError):
            return _refusal(index, outcome)
        assert isinstance(request, SubmitRequest)
        if outcome.status is SubmitStatus.CREATED:
            version, options = request.version.name, request.options
            position, eta_s = (None, options.delay_s) if options.delay_s else (max(0, outcome.depth - 1), None)
            body = accepted_body(
                outcome.id, version=version, priority=options.priority, position=position, eta_s=eta_s, tags=options.tags
            )
            return {"index": index, **orjson.loads(body)}
        known = await self._store.read(outcome.id)
        return _refusal(index, first_is_gone(outcome.id)) if known is None else {"index": index, **job_view(known)}

    def _charge_for(self, request: Request, head: Head, count: int) -> None:
        address = (request.scope.get("client") or ("",))[0]
        self._charge(head.get(b"authorization"), address, FURTHER_JOB_COST * (count - 1))

    async def _inputs(self, request: Request, head: Head) -> list[bytes]:
        negotiation.refuse_encoded(head)
        media = negotiation.base_type(head.get(b"content-type", JSON.encode()).decode("latin-1"))
        if media != JSON and media not in LINES:
            raise UnsupportedMedia(
                f"this path accepts {JSON} and {', '.join(LINES)}, not {media[:80]!r}",
                hint="Send a JSON array of inputs, or one JSON value per line. Inputs of other types are submitted one by one.",
            )
        receive: Receive = request.receive  # type: ignore[assignment]
        body = await read_body(request.scope, receive, head, limit=self._limits.max_raw_bytes, memory=self._uploads)
        return await asyncio.to_thread(split_array if media == JSON else split_lines, body)

    async def _prepared(self, inputs: Sequence[bytes], draft: Draft, key: str) -> Prepared:
        """The request of each input, or why it is refused. Each key is the request's key and the input's index, so that
        a repeat finds the same jobs. Raises `UnsupportedMedia` if the model takes no JSON.
        """
        assert draft.settled is not None
        with self._submitter.counting(draft.settled.model.name):
            negotiation.media_type(JSON.encode(), accepts=draft.settled.version.accepts)
        prepared: Prepared = []
        for index, data in enumerate(inputs):
            if index % _CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            one = structs.replace(draft, input=partial(self._input, data), key=f"{key}/{index}" if key else "")
            try:
                prepared.append(await self._submitter.prepare(one))
            except PenstockError as error:
                prepared.append(error)
        return prepared

    async def _input(self, data: bytes, version: VersionEntry) -> Payload:
        if len(data) > self._limits.max_json_bytes:
            raise too_large(len(data), self._limits.max_json_bytes)
        return await self._submitter.inputs.json(data, version)

    async def _stored(
        self, requests: Prepared, caller: Caller, *, is_whole: bool, may_repeat: bool
    ) -> list[Submitted | PenstockError]:
        """The outcome of each input. With `is_whole`, the first refusal is raised.

        Jobs stored before the refusal are cancelled, unless the request has an idempotency key: its repeat stores the others.
        """
        outcomes: list[Submitted | PenstockError] = []
        # One group at a time: other submits can go between, and admission sees the queue grow.
        for first in range(0, len(requests), MAX_ITEMS):
            group = requests[first : first + MAX_ITEMS]
            results = await asyncio.gather(*map(self._store_one, group), return_exceptions=True)
            outcomes += [one for one in results if isinstance(one, (Submitted, PenstockError))]
            errors = [one for one in results if isinstance(one, BaseException)]
            failed = next((error for error in errors if is_whole or not isinstance(error, PenstockError)), None)
            if failed is not None and may_repeat:
                raise failed
            if failed is not None:
                made = [one.id for one in outcomes if isinstance(one, Submitted) and one.status is SubmitStatus.CREATED]
                await self._submitter.cancel_all(made, caller)
                raise failed
        return outcomes

    async def _store_one(self, request: SubmitRequest | PenstockError) -> Submitted | PenstockError:
        if isinstance(request, PenstockError):
            return request
        return await self._submitter.submit(request, request.new_job_id())


def split_array(body: bytes) -> list[bytes]:
    """The elements of a JSON array, each as its original bytes. Raises `BadRequest`."""
    try:
        elements = [bytes(raw) for raw in _array.decode(body)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not a JSON array of inputs: {str(error)[:160]}") from None
    return _counted(elements)


def split_lines(body: bytes) -> list[bytes]:
    """The lines of JSON Lines that are not blank. Raises `BadRequest`."""
    return _counted([line.strip() for line in body.split(b"\n") if line.strip()])


def _counted(inputs: list[bytes]) -> list[bytes]:
    if not 1 <= len(inputs) <= MAX_INPUTS:
        raise BadRequest(
            f"the body has {len(inputs)} inputs; one request takes 1 to {MAX_INPUTS}",
            hint="Send the others in further requests, or a whole file as a run: POST /v1/runs.",
        )
    return inputs


def _key(head: Head) -> str:
    key = negotiation.idempotency_key(head)
    if len(key) > _KEY_MOST:
        raise BadRequest(f"the Idempotency-Key of many jobs may have {_KEY_MOST} characters, not {len(key)}")
    return key


def _refuse_all(requests: Prepared) -> None:
    """Raises one error for all refused inputs. If they could be read, it names the place of each fault."""
    refused = [(index, error) for index, error in enumerate(requests) if isinstance(error, PenstockError)]
    if not refused:
        return
    hint = "Correct them, or send partial=true to store the others."
    for index, error in refused:
        if not isinstance(error, InvalidInput):
            raise BadRequest(f"input {index} cannot be read, and none was stored: {error.message}", hint=hint)
    faults = [fault for index, error in refused for fault in _faults(index, error)]
    message = f"{len(refused)} of {len(requests)} inputs cannot be used; none was stored"
    raise InvalidInput(message, errors=faults[:MAX_ERRORS], hint=hint)


def _faults(index: int, error: PenstockError) -> list[dict[str, Any]]:
    inner = getattr(error, "errors", None) or [{"pointer": "", "detail": error.message}]
    return [{**fault, "pointer": f"/{index}{fault['pointer']}"} for fault in inner]


def _refusal(index: int, error: PenstockError) -> dict[str, Any]:
    said = {name: value for name, value in members_of(error).items() if value is not None}
    return {"index": index, "error": {"status": status_of(error), **said}}
