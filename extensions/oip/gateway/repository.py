"""The protocol's model repository: what is served, and loading and unloading of versions, as changes of penstock's own."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
from fastapi import APIRouter, Request
from msgspec import Struct
from starlette.responses import Response

from penstock.errors import BadRequest, Conflict, NoWorker
from penstock.extensions.oip.gateway.infer_request import refuse_foreign_type
from penstock.extensions.oip.gateway.metadata import repository_index
from penstock.gateway.asgi.bodies import parse_json
from penstock.gateway.asgi.negotiation import JSON, read_head, refuse_encoded
from penstock.gateway.asgi.wire import Receive, json_response, read_body
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.models.slots import SlotsState
from penstock.gateway.models.waits import await_slots
from penstock.gateway.services import Services

_MAX_BODY_BYTES = 64 * 1024
_MAX_DEPTH = 16


class _IndexRequest(Struct):
    ready: bool = False


class _ChangeRequest(Struct):
    parameters: dict[str, Any] = {}


# Made while one thread loads this module: D106.
_INDEX_REQUEST, _CHANGE_REQUEST = msgspec.json.Decoder(_IndexRequest), msgspec.json.Decoder(_ChangeRequest)


class Repository:
    """The routes below /v2/repository. `wait_s`: how long a load may take before its caller is told that it goes on."""

    def __init__(self, services: Services) -> None:
        self._changes = services.changes
        self._registry = services.registry
        self._uploads = services.uploads
        self._wait_s = services.settings.gateway.sync_timeout_s

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["Open Inference Protocol"])
        add, models = router.add_api_route, "/v2/repository/models/{model}"
        add("/v2/repository/index", self.index, methods=["POST"], summary="Every version and its state")
        add(f"{models}/load", self.load, methods=["POST"], summary="Load a version, or wait until the model is ready")
        add(f"{models}/unload", self.unload, methods=["POST"], summary="Unload a version")
        return router

    async def index(self, request: Request, caller: CallerParam) -> Response:
        wanted = await self._read(request, _INDEX_REQUEST)
        return json_response(await self.rows(ready_only=wanted.ready))

    async def rows(self, *, ready_only: bool) -> list[dict[str, str]]:
        """Each version and its state."""
        await self._registry.look_again()
        return repository_index(self._registry.models, self._registry.workers, ready_only=ready_only)

    async def load(self, model: str, request: Request, caller: CallerParam) -> Response:
        wanted = await self._read(request, _CHANGE_REQUEST)
        await self.load_model(model, wanted.parameters)
        return Response(b"", media_type=JSON)

    async def unload(self, model: str, request: Request, caller: CallerParam) -> Response:
        wanted = await self._read(request, _CHANGE_REQUEST)
        await self.unload_model(model, wanted.parameters)
        return Response(b"", media_type=JSON)

    async def load_model(self, model: str, parameters: dict[str, Any]) -> None:
        """Load the version that `config` describes, and wait until it is ready. Without `config`: wait for the default one.

        Raises `NoWorker` if it is not ready in time, `Conflict` if it cannot be loaded.
        """
        extra = parameters.keys() - {"config"}
        if extra:
            raise BadRequest(
                f"load takes `config` and no {sorted(extra)[0][:60]!r}: files of models lie in the workers' model_dir",
                hint="config is JSON: a version, its source below worker.model_dir, and settings of a version.",
            )
        version = ""
        if "config" in parameters:
            table = _config(parameters["config"])
            version = str(table.get("version", ""))
            await self._changes.load_version(model, table)
        await self._ready(model, version)

    async def unload_model(self, model: str, parameters: dict[str, Any]) -> None:
        """Unload the version that the parameter `version` names; without one the whole model, if no settings name it.

        Raises `Conflict` otherwise.
        """
        await self._registry.look_again()
        await self._registry.find(model)
        version = parameters.get("version")
        if version is None and not self._registry.named_versions(model):
            await self._changes.unload_model(model)
            return
        if not isinstance(version, str):
            raise Conflict(
                f"model {model!r} is declared in the settings and is not unloaded as a whole",
                hint='The parameter `version` names one of its versions: {"parameters": {"version": "2"}}.',
            )
        await self._changes.unload_version(model, version)

    async def _ready(self, model: str, version: str) -> None:
        await self._registry.look_again()
        _, served = await self._registry.find(model, version)
        waits = version or self._registry.slots(model, served.name).state is not SlotsState.UNSERVED
        slots = await await_slots(self._registry, model, served.name, timeout_s=self._wait_s if waits else 0.0)
        if slots.ready:
            return
        if slots.state is SlotsState.FAILED:
            raise Conflict(f"model {model!r} version {served.name!r} {slots.why}")
        raise NoWorker(f"model {model!r} is not ready: {slots.why}", retry_after_s=5.0)

    async def _read(self, request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
        head = read_head(request.headers.raw)
        refuse_encoded(head)
        refuse_foreign_type(head)
        receive: Receive = request.receive  # type: ignore[assignment]
        body = await read_body(request.scope, receive, head, limit=_MAX_BODY_BYTES, memory=self._uploads)
        if not body.strip():
            body = b"{}"
        parse_json(body, max_depth=_MAX_DEPTH)
        try:
            return decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"the body does not fit: {error}") from None


def _config(config: Any) -> dict[str, Any]:
    try:
        table = orjson.loads(config) if isinstance(config, str) else None
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"`config` is not valid JSON: {error}") from None
    if not isinstance(table, dict):
        raise BadRequest("`config` must be a JSON object in a text, as the protocol's clients send it")
    return table
