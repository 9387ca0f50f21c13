"""The answer to an inference request: outputs that were asked for, in JSON or behind it as bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import orjson

from penstock.errors import InvalidInput
from penstock.extensions.oip.gateway.infer_request import BINARY_SIZE, InferRequest, WantedOutput
from penstock.extensions.oip.gateway.tensor_json import json_data
from penstock.gateway.asgi.problems import ProblemResponse, refusal_text
from penstock.job import JobId
from penstock.tensors.tensor import Tensor

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class InferResult:
    """What a job answered. `batch_axis`: the inputs had a leading axis of length 1, so the outputs get one too."""

    model: str
    version: str
    job: JobId
    tensors: tuple[Tensor, ...]
    batch_axis: bool = False


def wanted_outputs(request: InferRequest, result: InferResult) -> list[tuple[Tensor, bool]]:
    """Each wanted output, and whether it should be binary. Raises `InvalidInput` for one that the model does not have."""
    known = {tensor.name: _framed(tensor, result) for tensor in result.tensors}
    wanted = request.outputs or tuple(WantedOutput(name, request.binary) for name in known)
    for output in wanted:
        if output.name not in known:
            raise InvalidInput(f"the model has no output {output.name[:_SHOWN]!r}; it has {', '.join(known) or 'none'}")
    return [(known[output.name], output.binary) for output in wanted]


def _framed(tensor: Tensor, result: InferResult) -> Tensor:
    return msgspec.structs.replace(tensor, shape=(1, *tensor.shape)) if result.batch_axis else tensor


def answer_body(request: InferRequest, result: InferResult) -> tuple[bytes, int | None]:
    """The body, and the length of its JSON if binary data follows. The data of binary outputs is copied once."""
    outputs = wanted_outputs(request, result)
    head: dict[str, Any] = {"model_name": result.model, "model_version": result.version}
    if request.id:
        head["id"] = request.id
    head["parameters"] = {"job": str(result.job)}
    head["outputs"] = [_view(tensor, binary) for tensor, binary in outputs]
    json = orjson.dumps(head)
    data: Sequence[bytes | memoryview] = [tensor.data for tensor, binary in outputs if binary]
    return (b"".join([json, *data]), len(json)) if data else (json, None)


def _view(tensor: Tensor, binary: bool) -> dict[str, Any]:
    parameters: dict[str, Any] = {"content_type": tensor.content_type} if tensor.content_type else {}
    view: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if binary:
        return {**view, "parameters": {**parameters, BINARY_SIZE: len(tensor.data)}}
    return {**view, **({"parameters": parameters} if parameters else {}), "data": json_data(tensor)}


def speaks_oip(path: str) -> bool:
    return path == "/v2" or path.startswith("/v2/")


def as_oip(problem: ProblemResponse) -> ProblemResponse:
    """The same refusal with the member `error` that the protocol's clients read, in the media type that they expect."""
    body: dict[str, Any] = orjson.loads(problem.body)
    content = orjson.dumps({"error": refusal_text(body), **body})
    changed = {b"content-type": b"application/json", b"content-length": b"%d" % len(content)}
    return replace(problem, body=content, headers=[(name, changed.get(name, value)) for name, value in problem.headers])
