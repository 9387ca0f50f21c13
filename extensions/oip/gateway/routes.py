"""The protocol over HTTP: server and model metadata, and what is refused by name."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.extensions.oip.gateway.inference import Inference
from penstock.extensions.oip.gateway.metadata import EXTENSIONS, PLATFORM, model_config, model_metadata
from penstock.gateway.asgi.problems import NotReady, NotSupported
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.auth.rules import ANY, MANAGE, SUBMIT, RouteRules
from penstock.gateway.services import Services

_MODEL = "/v2/models/{model}"
_VERSION = _MODEL + "/versions/{version}"
# What a refusal says of the parts of Triton's protocol that penstock does not have.
_UNSERVED = {
    "stats": "statistics per model: GET /metrics has them",
    "setting": "trace settings: traces are sent by OpenTelemetry",
    "logging": "log settings: they stand in penstock's own settings",
    "memory": "shared memory: a job's input outlives its request",
}
# What the protocol's clients may call and penstock refuses by name.
UNSERVED = (
    *(("GET", f"/v2/models{path}/stats") for path in ("", "/{model}", "/{model}/versions/{version}")),
    *((method, path) for path in ("/v2/trace/setting", "/v2/logging") for method in ("GET", "POST")),
    *(("GET", f"/v2/{kind}sharedmemory/status") for kind in ("system", "cuda")),
    *(("POST", f"/v2/{kind}sharedmemory/region/{{name}}/register") for kind in ("system", "cuda")),
)
RULES = RouteRules(
    {
        ("GET", "/v2"): ANY,
        ("GET", "/v2/models/{model}"): ANY,
        ("GET", "/v2/models/{model}/config"): ANY,
        ("GET", "/v2/models/{model}/ready"): ANY,
        ("GET", "/v2/models/{model}/versions/{version}"): ANY,
        ("GET", "/v2/models/{model}/versions/{version}/config"): ANY,
        ("GET", "/v2/models/{model}/versions/{version}/ready"): ANY,
        ("POST", "/v2/models/{model}/infer"): SUBMIT,
        ("POST", "/v2/models/{model}/versions/{version}/infer"): SUBMIT,
        ("POST", "/v2/repository/index"): MANAGE,
        ("POST", "/v2/repository/models/{model}/load"): MANAGE,
        ("POST", "/v2/repository/models/{model}/unload"): MANAGE,
        **dict.fromkeys(UNSERVED, MANAGE),
    },
    acts={
        ("POST", "/v2/repository/models/{model}/load"): "load model",
        ("POST", "/v2/repository/models/{model}/unload"): "unload model",
    },
    probes=frozenset({"/v2/health/live", "/v2/health/ready"}),
)
_TAG = "Open Inference Protocol"


class OpenInference:
    """The routes of /v2 except those of inference, the repository and health."""

    def __init__(self, services: Services, inference: Inference) -> None:
        self._inference = inference
        self._registry = services.registry

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
        return router

    async def server(self, caller: CallerParam) -> Response:
        return json_response({"name": PLATFORM, "version": "2", "extensions": EXTENSIONS})

    async def metadata(self, model: str, caller: CallerParam, version: str = "") -> Response:
        return json_response(model_metadata(*await self._registry.find(model, version)))

    async def config(self, model: str, caller: CallerParam, version: str = "") -> Response:
        return json_response(model_config(*await self._registry.find(model, version)))

    async def ready(self, model: str, caller: CallerParam, version: str = "") -> Response:
        why = await self._inference.unready(model, version)
        if why:
            raise NotReady(why, missing=[])
        return json_response({"name": model, "ready": True})


class ServerHealth:
    """The probes of the protocol, among those of the gateway."""

    def __init__(self, services: Services) -> None:
        self._health = services.health

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["health"])
        router.add_api_route("/v2/health/live", self.oip_live, methods=["GET"], summary=_TAG)
        router.add_api_route("/v2/health/ready", self.oip_ready, methods=["GET"], summary=_TAG)
        return router

    async def oip_live(self) -> Response:
        return json_response({"live": True})

    async def oip_ready(self) -> Response:
        ready = await self._health.is_ready()
        return json_response({"ready": ready}, status=200 if ready else 503)


async def _refuse(request: Request, caller: CallerParam) -> Response:
    route = request.scope["route"].path
    raise NotSupported(f"penstock does not serve {next(what for word, what in _UNSERVED.items() if word in route)}")
