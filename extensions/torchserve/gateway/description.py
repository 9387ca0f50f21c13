"""The OpenAPI documents that TorchServe's routes answer `OPTIONS` with: one of all routes, one of a model. Pure."""

from __future__ import annotations

from typing import Any

from penstock.gateway.auth.rules import SUBMIT, security

_TITLE = "TorchServe APIs"
_ERROR = {
    "type": "object",
    "required": ["code", "type", "message"],
    "properties": {
        "code": {"type": "integer", "description": "Error code."},
        "type": {"type": "string", "description": "Error type."},
        "message": {"type": "string", "description": "Error message."},
    },
}
_OBJECT = {"type": "object"}
_STATUS = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
_ANYTHING = {"type": "string", "format": "binary"}
_REFUSALS = {
    "404": "Model not found or model version not found",
    "429": "The model's queue is full",
    "500": "The model failed, or its worker died",
    "503": "No worker serves the model, or the prediction failed",
    "507": "The request does not fit the device's memory",
}
_DOCUMENTED_AS_OURS = frozenset(
    {
        "/",
        "/ping",
        "/v2/models/{model_name}/infer",
        "/predictions/{model_name}",
        "/predictions/{model_name}/{model_version}",
        "/explanations/{model_name}",
        "/explanations/{model_name}/{model_version}",
    }
)
# By path: method, identifier, what it does, and whether it is a prediction.
_ROUTES: tuple[tuple[str, str, str, str, bool], ...] = (
    ("/", "options", "apiDescription", "Get openapi description.", False),
    ("/api-description", "get", "apiDescriptionByPath", "Get openapi description.", False),
    ("/ping", "get", "ping", "Get the server's status.", False),
    ("/predictions/{model_name}", "post", "predictions", "Predict with the default version.", True),
    ("/predictions/{model_name}/{model_version}", "post", "version_predictions", "Predict with a version.", True),
    ("/explanations/{model_name}", "post", "explanations", "Explain with the default version.", True),
    ("/explanations/{model_name}/{model_version}", "post", "version_explanations", "Explain with a version.", True),
    ("/v1/models/{model_name}:predict", "post", "kservePredict", "Predict, as KServe's first protocol has it.", True),
    ("/v1/models/{model_name}:explain", "post", "kserveExplain", "Explain, as KServe's first protocol has it.", True),
    ("/v2/models/{model_name}/infer", "post", "kserveInfer", "Predict, as KServe's second protocol has it.", True),
    ("/v2/models/{model_name}/explain", "post", "kserveInferExplain", "Explain, as KServe's second protocol has it.", True),
    ("/invocations", "post", "invocations", "Predict with the model that a field names.", True),
    ("/models/{model_name}/invoke", "post", "invoke", "Predict with the default version.", True),
    ("/{model_name}/predict", "post", "predict", "Predict; query parameters are fields of the input.", True),
    ("/{model_name}/{model_version}/predict", "post", "version_predict", "Predict with a version.", True),
)


def api_description(version: str) -> dict[str, Any]:
    """The document of the inference routes. `version` is penstock's."""
    info = {"title": _TITLE, "description": "penstock behind TorchServe's routes", "version": version}
    paths = {path: {method: _operation(path, name, text, predicts)} for path, method, name, text, predicts in _ROUTES}
    return {"openapi": "3.0.1", "info": info, "paths": paths}


def add_routes(document: dict[str, Any], *, keyed: bool) -> dict[str, Any]:
    """Our own document with TorchServe's routes that penstock does not have otherwise. `keyed`: with the roles they need."""
    for path, method, name, text, predicts in _ROUTES:
        if path in _DOCUMENTED_AS_OURS:
            continue
        operation = _operation(path, f"torchserve_{name}", text, predicts)
        roles = security(SUBMIT) if predicts else []
        document["paths"][path] = {method: {**operation, "tags": ["torchserve"], **({"security": roles} if keyed else {})}}
    return document


def model_description(model: str, version: str) -> dict[str, Any]:
    """The document of one model, whose version may be empty."""
    path = f"/predictions/{model}/{version}" if version else f"/predictions/{model}"
    info = {"title": f"RESTful API for: {model}", "version": version or "1.0.0"}
    predict = _operation(path, model, f"A predict entry point for model: {model}.", True)
    return {"openapi": "3.0.1", "info": info, "paths": {path: {"post": predict}}}


def _operation(path: str, name: str, text: str, predicts: bool) -> dict[str, Any]:
    names = [part.split("}")[0] for part in path.split("{")[1:]]
    parameters = [{"in": "path", "name": one, "required": True, "schema": {"type": "string"}} for one in names]
    operation: dict[str, Any] = {"description": text, "operationId": name, "parameters": parameters}
    if not predicts:
        return {**operation, "responses": {"200": _answer("OK", _STATUS if name == "ping" else _OBJECT)}}
    operation["requestBody"] = {"description": "Input of the model.", "content": {"*/*": {"schema": _ANYTHING}}}
    refused = {status: _answer(why, _ERROR) for status, why in _REFUSALS.items()}
    return {**operation, "responses": {"200": {"description": "The model's output."}, **refused}}


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
