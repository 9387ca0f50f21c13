"""The protocol over HTTP: server and model metadata, inference, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.errors import BadRequest
from penstock.gateway.asgi import negotiation
from penstock.gateway.asgi.connection import connection_of
from penstock.gateway.asgi.negotiation import JSON, OCTETS, read_head
from penstock.gateway.asgi.problems import NotReady, NotSupported
from penstock.gateway.asgi.wire import CLIENT_GONE, NOSNIFF, BodyMemory, ClientGone, json_response, read_body
from penstock.gateway.auth.keys import Caller
from penstock.gateway.auth.roles import UNSERVED, CallerParam
from penstock.gateway.jobs.submitting.submitter import SubmitRequest, Submitter, fingerprint
from penstock.gateway.models.registry import ModelRegistry, VersionEntry, why_unserved
from penstock.gateway.oip.compression import deflated, inflated
from penstock.gateway.oip.infer_answer import answer_body
from penstock.gateway.oip.infer_request import InferRequest, raw_request, read_infer_request, refuse_foreign_type
from penstock.gateway.oip.inference import Inference
from penstock.gateway.oip.metadata import EXTENSIONS, PLATFORM, input_ports, model_config, model_metadata
from penstock.gateway.options import GatewayOptions

HEADER_LENGTH = "inference-header-content-length"
_MODEL = "/v2/models/{model}"
_VERSION = _MODEL + "/versions/{version}"
# What is told of the parts of Triton's protocol that penstock has not.
_UNSERVED = {
    "stats": "statistics per model: GET /metrics has them",
    "setting": "trace settings: traces are sent by OpenTelemetry",
    "logging": "log settings: they stand in penstock's own settings",
    "memory": "shared memory: a job's input outlives its request",
}
_TAG = "Open Inference Protocol"
_BODY = {
    "required": True,
    "content": {
        JSON: {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {
                    "id": {"type": "string"},
                    "parameters": {"type": "object"},
                    "inputs": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name", "shape", "datatype"],
                            "properties": {
                                "name": {"type": "string"},
                                "shape": {"type": "array", "items": {"type": "integer"}},
                                "datatype": {"type": "string"},
                                "parameters": {"type": "object"},
                                "data": {"type": "array"},
                            },
                        },
                    },
                    "outputs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
                },
            }
        },
        OCTETS: {"schema": {"type": "string", "format": "binary"}},
    },
}


class OpenInference:
    """The routes of /v2 but those of the repository and of health."""

    def __init__(
        self,
        inference: Inference,
        options: GatewayOptions,
        *,
        submitter: Submitter,
        registry: ModelRegistry,
        uploads: BodyMemory,
        held: Callable[[Caller], AbstractContextManager[None]],
    ) -> None:
        self._inference = inference
        self._options = options
        self._submitter = submitter
        self._registry = registry
        self._uploads = uploads
        self._held = held

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=[_TAG])
        add = router.add_api_route
        # Before the routes of one model, or `stats` would be taken for a model.
        for method, path in UNSERVED:
            add(path, _refuse, methods=[method], summary="Not served")
        add("/v2", self.server, methods=["GET"], summary="The server and its extensions")
        for path in (_MODEL, _VERSION):
            add(path, self.metadata, methods=["GET"], summary="The tensors of a model")
            add(f"{path}/config", self.config, methods=["GET"], summary="The configuration, in Triton's words")
            add(f"{path}/ready", self.ready, methods=["GET"], summary="Whether a worker is ready")
            add(f"{path}/infer", self.infer, methods=["POST"], summary="Infer", openapi_extra={"requestBody": _BODY})
        return router

    async def server(self, caller: CallerParam) -> Response:
        return json_response({"name": PLATFORM, "version": "2", "extensions": EXTENSIONS})

    async def metadata(self, model: str, caller: CallerParam, version: str = "") -> Response:
        return json_response(model_metadata(*await self._registry.find(model, version)))

    async def config(self, model: str, caller: CallerParam, version: str = "") -> Response:
        return json_response(model_config(*await self._registry.find(model, version)))

    async def ready(self, model: str, caller: CallerParam, version: str = "") -> Response:
        entry, found = await self._registry.find(model, version)
        if not found.capacity.ready_slots:
            await self._registry.look_again()
            entry, found = await self._registry.find(model, version)
        if not found.capacity.ready_slots:
            why = why_unserved(self._registry.workers, entry.name, found.name)
            raise NotReady(f"model {entry.name!r} version {found.name!r} is not ready: {why}", missing=[])
        return json_response({"name": entry.name, "ready": True})

    async def infer(self, model: str, request: Request, caller: CallerParam, version: str = "") -> Response:
        try:
            with self._held(caller):
                return await self._infer(model, version, request, caller)
        except ClientGone:
            return Response(status_code=CLIENT_GONE)

    async def _infer(self, model: str, version: str, request: Request, caller: Caller) -> Response:
        await self._registry.find(model, version)
        length = header_length(request)
        body = await self._body(request, caller)
        asked, result = await self._inference.answer(
            model,
            version,
            partial(self._read, body, length),
            caller=caller,
            connection=connection_of(request.scope),
            headers=request.headers.raw,
            size=len(body),
            complete=partial(self._complete, request, model, version, body),
        )
        content, json_length = answer_body(asked, result)
        content, encoding = await deflated(content, request.headers.get("accept-encoding", ""))
        answer = Response(content, media_type=JSON if json_length is None else OCTETS)
        answer.raw_headers += [NOSNIFF, (b"x-penstock-job", str(result.job).encode("ascii"))]
        answer.raw_headers += [] if json_length is None else [(HEADER_LENGTH.encode(), b"%d" % json_length)]
        answer.raw_headers += [(b"content-encoding", encoding.encode())] if encoding else []
        return answer

    async def _body(self, request: Request, caller: Caller) -> bytes:
        head, limit, owner = read_head(request.headers.raw), self._options.max_raw_bytes, caller.owner
        refuse_foreign_type(head)
        body = await read_body(request.receive, head, limit=limit, memory=self._uploads, owner=owner)  # type: ignore[arg-type]
        encoding = request.headers.get("content-encoding", "")
        return await inflated(body, encoding, limit=limit, memory=self._uploads, owner=owner) if encoding else body

    def _read(self, body: bytes, length: int | None, version: VersionEntry) -> InferRequest:
        if length != 0:
            limits = {"max_json_bytes": self._options.max_json_bytes, "max_depth": self._options.max_json_depth}
            return read_infer_request(body, length, **limits)
        ports = input_ports(version)
        if len(ports) != 1:
            raise BadRequest(
                f"{HEADER_LENGTH} is 0: the body is the one input of a model, and this one has {len(ports)} that are known"
            )
        return raw_request(body, ports[0])

    def _complete(self, http: Request, model: str, version: str, body: bytes, request: SubmitRequest) -> SubmitRequest:
        head = read_head(http.headers.raw)
        key = negotiation.idempotency_key(head)
        digest = fingerprint("infer", model, version, request.input) if key else ""
        return self._submitter.traced(replace(request, key=key, fingerprint=digest), http.scope, head)  # type: ignore[arg-type]


def header_length(request: Request) -> int | None:
    """The length of the JSON before binary tensors; None if the whole body is JSON. Raises `BadRequest`."""
    found = request.headers.getlist(HEADER_LENGTH)
    if not found:
        return None
    if len(found) > 1 or not found[0].isascii() or not found[0].isdigit() or len(found[0]) > 12:
        raise BadRequest(f"{HEADER_LENGTH} must be one whole number")
    return int(found[0])


async def _refuse(request: Request, caller: CallerParam) -> Response:
    route = request.scope["route"].path
    raise NotSupported(f"penstock does not serve {next(what for word, what in _UNSERVED.items() if word in route)}")
