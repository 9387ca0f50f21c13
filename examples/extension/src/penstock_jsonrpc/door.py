"""POST /rpc: calls become drafts of jobs, and the ends of jobs become responses. What lies between is the gateway's."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.broker.partitions import queues_of_model
from penstock.broker.records import Push
from penstock.gateway.asgi.connection import ClientConnection, connection_of
from penstock.gateway.asgi.negotiation import JSON, Head, read_head
from penstock.gateway.asgi.wire import WORDING, ClientGone, Scope, json_body, json_response
from penstock.gateway.auth.keys import FURTHER_JOB_COST, Caller
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.error_responses import problem_of
from penstock.gateway.jobs.predict import answer_deadline
from penstock.gateway.jobs.results import ended, visible_job
from penstock.gateway.jobs.submitting.draft import Draft, SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import options_in
from penstock.gateway.services import Services
from penstock.gateway.jobs.views import job_view
from penstock.job import JobState, parse_job_id
from penstock_jsonrpc.messages import (
    InvalidRpcRequest,
    RpcCall,
    RpcParams,
    UnknownRpcMethod,
    read_call,
    read_params,
    response_of,
    worded_call,
    worded_unread,
)
from penstock_jsonrpc.tally import Tally, read_tally

PATH = "/rpc"


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """The HTTP request behind one call. `key`: None to take the key of the headers, which a batch does not do. `said`: headers
    of the response.
    """

    caller: Caller
    scope: Scope
    head: Head
    connection: ClientConnection
    key: str | None = None
    said: dict[str, str] = field(default_factory=dict)


class JsonRpc:
    """The calls of one gateway process."""

    def __init__(self, services: Services, *, max_batch: int) -> None:
        self._services = services
        self._max_batch = max_batch
        self._methods = {
            "predict": self._predict,
            "submit": self._submit,
            "get": self._get,
            "cancel": self._cancel,
            "tally": self._tally,
        }

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["predictions"])
        router.add_api_route(PATH, self.answer, methods=["POST"], summary="JSON-RPC 2.0: a call, or an array of calls")
        return router

    async def answer(self, request: Request, caller: CallerParam) -> Response:
        services = self._services
        # The body names the models, so a refusal before they are known is counted under `unknown`.
        with services.submitter.counting():
            said = await json_body(request, services.settings.gateway, services.uploads)
            if isinstance(said, list):
                self._charge(request, len(said))
            call = None if isinstance(said, list) else read_call(said)
        alone = RpcRequest(caller, request.scope, read_head(request.headers.raw), connection_of(request.scope))  # type: ignore[arg-type]
        # A call that waits for an output takes a permit of the predictions.
        with services.awaiting(caller):
            return await self._batch(said, alone) if call is None else await self._alone(call, alone)

    async def _alone(self, call: RpcCall, request: RpcRequest) -> Response:
        """A refusal is raised: the gateway answers it with the status and headers that it has everywhere."""
        if call.is_notification:
            await self._item(call, request)
            return Response(status_code=204)
        request.scope[WORDING] = partial(worded_call, call)
        result = await self._result(call, request)
        return json_response(response_of(call, result), headers=request.said)

    async def _batch(self, said: Sequence[Any], whole: RpcRequest) -> Response:
        """All calls at once. A fault affects one call only, and its neighbours are still answered."""
        # Each call listens for the client's leaving, and a connection has one listener only, so each gets its own.
        requests = [replace(whole, connection=ClientConnection(), key="") for _ in said]

        def hang_up() -> None:
            for one in requests:
                one.connection.mark_lost()

        whole.connection.on_lost = hang_up
        items = [self._item(one, request) for one, request in zip(said, requests, strict=True)]
        responses = [one for one in await asyncio.gather(*items) if one is not None]
        if whole.connection.lost:
            raise ClientGone
        return json_response(responses) if responses else Response(status_code=204)

    async def _item(self, said: Any, request: RpcRequest) -> dict[str, Any] | None:
        """The response to a call, also to one that fails; None to a notification, and if the client has left."""
        call = None
        try:
            call = said if isinstance(said, RpcCall) else read_call(said)
            response = response_of(call, await self._result(call, request))
        except ClientGone:
            return None
        except Exception as error:  # noqa: BLE001 - `problem_of` logs every error but refusals
            problem = problem_of(error, request.scope, request.head.get(b"x-request-id"), ())
            refused = worded_unread(problem, error) if call is None else worded_call(call, problem, error)
            response = orjson.loads(refused.body)
        return None if call is not None and call.is_notification else response

    async def _result(self, call: RpcCall, request: RpcRequest) -> Any:
        method = self._methods.get(call.method)
        if method is None:
            raise UnknownRpcMethod(f"there is no method {call.method[:80]!r}; there are {', '.join(self._methods)}")
        if call.is_notification and call.method == "predict":
            method = self._submit
        return await method(call, read_params(call), request)

    async def _prepared(
        self, call: RpcCall, params: RpcParams, request: RpcRequest, *, is_awaited: bool
    ) -> SubmitRequest:
        """What a call asks for, as a draft: found, checked, traced and, if refused, counted by the gateway."""
        submitter = self._services.submitter
        draft = Draft(
            model=params.model,
            version=params.version,
            caller=request.caller,
            kind="rpc",
            is_awaited=is_awaited,
            input=partial(submitter.inputs.json, orjson.dumps(params.input)),
            options=options_in(urlencode(params.options).encode()),
            headers=request.scope["headers"],
            head=request.head,
            scope=request.scope,
            key=request.key if params.idempotency_key is None else params.idempotency_key,
            words={"jsonrpc": "notify" if call.is_notification else call.method},
        )
        return await submitter.prepare(draft)

    async def _predict(self, call: RpcCall, params: RpcParams, request: RpcRequest) -> Any:
        """The output. If the client hangs up, the job is cancelled."""
        services = self._services
        prepared = await self._prepared(call, params, request, is_awaited=True)
        deadline_s = answer_deadline(prepared, services.settings.gateway.sync_timeout_s)
        if not prepared.version.capacity.is_served:
            await services.predict.require_worker(prepared)
        end = await services.predict.end_of(prepared, request.connection, deadline_s)
        request.said["x-penstock-job"] = str(end.id)
        return await self._output(end)

    async def _submit(self, call: RpcCall, params: RpcParams, request: RpcRequest) -> Any:
        """The id of a job that runs on its own."""
        prepared = await self._prepared(call, params, request, is_awaited=False)
        stored = await self._services.submitter.submit(prepared, prepared.new_job_id())
        request.said["x-penstock-job"] = str(stored.id)
        return {"job": str(stored.id)}

    async def _get(self, call: RpcCall, params: RpcParams, request: RpcRequest) -> Any:
        """The state of a job and, once it has succeeded, its output."""
        job = await visible_job(self._services.store, parse_job_id(params.job), request.caller)
        view = job_view(job)
        return {**view, "output": await self._output(ended(job))} if job.state is JobState.SUCCEEDED else view

    async def _cancel(self, call: RpcCall, params: RpcParams, request: RpcRequest) -> Any:
        job = await visible_job(self._services.store, parse_job_id(params.job), request.caller)
        outcome = await self._services.store.cancel(job.id, owner=job.owner)
        self._services.job_log.log_cancelled(job.id, outcome, version=job.version, trace=job.trace)
        return {"job": str(job.id), "outcome": outcome.value}

    async def _tally(self, call: RpcCall, params: RpcParams, request: RpcRequest) -> Any:
        """How the jobs of the caller's calls of this model ended, by method and state."""
        entry, _ = await self._services.registry.find(params.model)
        reads = (self._services.store.run(read_tally(queue, request.caller.owner)) for queue in queues_of_model(entry.info))
        counts: dict[str, dict[str, int]] = {}
        for (method, state), count in sorted(sum(await asyncio.gather(*reads), Tally()).items()):
            counts.setdefault(method, {})[state] = count
        return counts

    def _charge(self, request: Request, count: int) -> None:
        """Each further call of a batch costs a part of the key's rate. Raises `InvalidRpcRequest`, `RateLimited`."""
        if not 0 < count <= self._max_batch:
            raise InvalidRpcRequest(f"a batch has 1 to {self._max_batch} calls, not {count}")
        authorization = request.headers.get("authorization", "").encode("latin-1")
        address = request.client.host if request.client else ""
        self._services.auth.admit(authorization or None, address, FURTHER_JOB_COST * (count - 1))

    async def _output(self, end: Push) -> Any:
        """An output in JSON as it is, any other one with its media type. Raises the failure of a job that has none."""
        output = await self._services.results.output(end)
        if output.content_type == JSON:
            return orjson.loads(output.data)
        return {"content_type": output.content_type, "base64": base64.b64encode(output.data).decode()}
