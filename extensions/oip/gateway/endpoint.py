"""POST /v2/models/{model}[/versions/{version}]/infer: a body read, one job, its output written.

FastAPI is bypassed: for a small tensor it would take half as long as the rest of the gateway's work.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from penstock.errors import BadRequest
from penstock.extensions.oip.gateway.compression import deflated, inflated
from penstock.extensions.oip.gateway.infer_answer import answer_body
from penstock.extensions.oip.gateway.infer_request import InferRequest, raw_request, read_infer_request, refuse_foreign_type
from penstock.extensions.oip.gateway.inference import InferCaller, Inference
from penstock.extensions.oip.gateway.metadata import input_ports
from penstock.gateway.asgi import wire
from penstock.gateway.asgi.bodies import MAX_JSON_DEPTH
from penstock.gateway.asgi.connection import connection_of
from penstock.gateway.asgi.negotiation import JSON, OCTETS, Head, trace_header
from penstock.gateway.asgi.problems import MethodNotAllowed
from penstock.gateway.asgi.wire import NOSNIFF, Receive, Scope, Send, read_body
from penstock.gateway.auth.rules import SUBMIT, security
from penstock.gateway.models.registry import VersionEntry
from penstock.gateway.openapi import path_parameters, problem
from penstock.gateway.services import Services

_MODELS, _VERSIONS, _INFER = "/v2/models/", "versions/", "/infer"
HEADER_LENGTH = b"inference-header-content-length"
_ACCEPT_ENCODING = b"accept-encoding"
_INFER_BODY = {
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


def add_routes(document: dict[str, Any], keyed: bool) -> dict[str, Any]:
    """The OpenAPI document with the routes of inference."""
    for names, tail in ((("model",), ""), (("model", "version"), "/versions/{version}")):
        operation = {
            "tags": ["Open Inference Protocol"],
            "summary": "Infer",
            "parameters": path_parameters(*names),
            "requestBody": _INFER_BODY,
            "responses": {"200": {"description": "The outputs"}, "default": problem("Any refusal")},
            **({"security": security(SUBMIT)} if keyed else {}),
        }
        document["paths"][f"{_MODELS}{{model}}{tail}{_INFER}"] = {"post": operation}
    return document


class InferTarget(NamedTuple):
    """The model and version that a path names. `route` is the path's template, as metrics show it."""

    route: str
    model: str
    version: str
    is_public: bool = False


class InferEndpoint:
    """Answers one inference request."""

    def __init__(self, services: Services, inference: Inference) -> None:
        self._inference = inference
        self._limits = services.settings.gateway
        self._uploads = services.uploads

    def target(self, scope: Scope) -> InferTarget | None:
        return parse_infer_target(scope["path"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send, head: Head, target: InferTarget) -> int:
        """Returns the status code that was sent."""
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{scope['method'][:20]} is not a method of this path; it takes POST", allow="POST")
        model, version = target.model, target.version
        await self._inference.find(model, version)
        length = header_length(scope)
        body = await self._body(scope, receive, head)
        asking = InferCaller(scope["caller"], connection_of(scope), scope["headers"], head, scope)
        read = partial(self._read, model, body, length)
        answering = self._inference.answer(model, version, read, asking, size=len(body))
        # What waits for the answer holds nothing of the body (D145).
        del body, read
        asked, result = await answering
        content, json_length = answer_body(asked, result)
        accepted = b", ".join(_values(scope, _ACCEPT_ENCODING)).decode("latin-1")
        content, encoding = await deflated(content, accepted) if accepted else (content, "")
        headers = [
            (b"content-type", (JSON if json_length is None else OCTETS).encode()),
            (b"content-length", b"%d" % len(content)),
            NOSNIFF,
            (b"x-penstock-job", str(result.job).encode("ascii")),
            *([] if json_length is None else [(HEADER_LENGTH, b"%d" % json_length)]),
            *([(b"content-encoding", encoding.encode())] if encoding else []),
            *trace_header(scope.get("trace")),
        ]
        await wire.answer(send, 200, headers, content)
        return 200

    async def _body(self, scope: Scope, receive: Receive, head: Head) -> bytes:
        limit, memory = self._limits.max_raw_bytes, self._uploads
        refuse_foreign_type(head)
        body = await read_body(scope, receive, head, limit=limit, memory=memory)
        encoding = head.get(b"content-encoding", b"").decode("latin-1")
        return await inflated(body, encoding, limit=limit, memory=memory, scope=scope) if encoding else body

    def _read(self, model: str, body: bytes, length: int | None, version: VersionEntry) -> InferRequest:
        if length != 0:
            limits = {"max_json_bytes": self._limits.max_json_bytes, "max_depth": MAX_JSON_DEPTH}
            return read_infer_request(body, length, **limits, model=model)
        ports = input_ports(version)
        if len(ports) != 1:
            raise BadRequest(
                f"{HEADER_LENGTH.decode()} is 0: the body is the one input of a model, and this one has {len(ports)} that "
                "are known"
            )
        return raw_request(body, ports[0])


def parse_infer_target(path: str) -> InferTarget | None:
    """The target of an inference request; None for every other path."""
    if not (path.startswith(_MODELS) and path.endswith(_INFER)):
        return None
    model, slash, rest = path[len(_MODELS) : -len(_INFER)].partition("/")
    version = rest[len(_VERSIONS) :] if rest.startswith(_VERSIONS) else ""
    if not model or (slash and not version) or "/" in version:
        return None
    return InferTarget("/v2/models/{model}/versions/{version}/infer" if slash else "/v2/models/{model}/infer", model, version)


def _values(scope: Scope, wanted: bytes) -> Iterator[bytes]:
    return (value for name, value in scope["headers"] if name == wanted)


def header_length(scope: Scope) -> int | None:
    """The length of the JSON before binary tensors; None if the whole body is JSON. Raises `BadRequest`."""
    lengths = list(_values(scope, HEADER_LENGTH))
    if not lengths:
        return None
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 12:
        raise BadRequest(f"{HEADER_LENGTH.decode()} must be one whole number")
    return int(lengths[0])
