"""TorchServe's protocol in a gateway: its routes and management, gRPC ports, tokens, metrics and access log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import orjson
from fastapi import APIRouter
from starlette.responses import Response

from penstock.errors import StoreUnavailable
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.gateway.asgi.listening import bind
from penstock.gateway.asgi.negotiation import JSON
from penstock.gateway.asgi.server import ListeningSocket, ServerBeside
from penstock.gateway.auth.rules import RouteRules
from penstock.gateway.extending import GatewayPart, RpcPart
from penstock.gateway.services import Services
from penstock.gateway.telemetry.health import Health
from penstock.settings.tables import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penstock.extensions.torchserve.management.app import Management
    from penstock.gateway.rpc.server import RpcShared

_AS_TORCHSERVE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
_RULES = RouteRules(probes=frozenset({"/ping"}))


class Ping:
    """Whether the gateway is ready, in TorchServe's words. It is served without the other routes too."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["health"])
        router.add_api_route("/ping", self.ping, methods=["GET"], summary="Ready, in TorchServe's words")
        return router

    async def ping(self) -> Response:
        """As TorchServe answers, body and status."""
        healthy = await self._health.is_ready()
        body = orjson.dumps({"status": "Healthy" if healthy else "Unhealthy"}, option=_AS_TORCHSERVE)
        return Response(body, status_code=200 if healthy else 500, media_type=JSON)


def gateway(services: Services) -> GatewayPart:
    """Few gateways speak TorchServe's protocol, and the others do without its modules."""
    own = services.settings.extension(TorchServeSettings)
    if own.access_log:
        from penstock.extensions.torchserve.gateway.access_log import AccessLog

        services.metrics.answers = AccessLog()
    scrape, routers = _scrape(services) if own.metrics else None, (Ping(services.health).router(),)
    if not own.enabled:
        return GatewayPart(routers=routers, rules=_RULES, scrape=scrape)
    from penstock.extensions.torchserve.gateway.door import TorchServeDoor
    from penstock.extensions.torchserve.management.app import management_of

    if own.key_path is not None:
        _take_tokens(services, own)
    door, management = TorchServeDoor(services, own), management_of(services, own)
    return GatewayPart(
        routers=routers,
        rules=_RULES,
        doors_before=(door,),
        lifespans=(management.keeper,),
        listeners=(management,) if management.is_beside else (),
        document=door.add_routes,
        scrape=scrape,
        rpc=RpcPart(lambda settings: _ports_in(own, settings), lambda shared: _ports(services, own, management, shared)),
        asides=lambda settings, shared: _asides(management, settings, shared=shared),
    )


def _take_tokens(services: Services, own: TorchServeSettings) -> None:
    """Raises `ConfigError` for a file that cannot be used."""
    from penstock.broker.store.sync import RedisStore
    from penstock.extensions.torchserve.gateway.tokens import TokenFile

    assert own.key_path is not None
    auth, settings = services.auth, services.settings
    # The keys' beat tells the store's time only once the gateway serves, and the file may have to be written before.
    with closing(RedisStore(settings.job_store_url)) as store, suppress(StoreUnavailable):
        auth.take_time(store.now())
    tokens = TokenFile(own.key_path, lifetime_s=own.token_lifetime_s, is_alone=not settings.keys, wall=auth.now)
    auth.take_tokens(tokens.open())


def _scrape(services: Services) -> Callable[[], Awaitable[bytes]]:
    from penstock.extensions.torchserve.gateway.metrics import TorchServeCounts, torchserve_text

    counts = TorchServeCounts()
    metrics, registry, folder = services.metrics, services.registry, services.settings.files_dir
    metrics.predictions = counts

    async def scrape() -> bytes:
        return await asyncio.to_thread(lambda: torchserve_text(counts, metrics.answered(), registry.workers, folder))

    return scrape


def _ports_in(own: TorchServeSettings, settings: Settings) -> Mapping[str, int]:
    if own.grpc_management_port:
        settings.extension(TorchServeSettings).management_access_rule(settings)
    return {
        "torchserve.grpc_inference_port": own.grpc_inference_port,
        "torchserve.grpc_management_port": own.grpc_management_port,
    }


def _ports(services: Services, own: TorchServeSettings, management: Management, shared: RpcShared) -> Sequence[ServerBeside]:
    from penstock.extensions.torchserve.grpc.server import TorchServePorts

    return TorchServePorts(services, own, management.service, shared).ports()


def _asides(management: Management, settings: Settings, *, shared: bool) -> Sequence[ListeningSocket]:
    """The port of management, where the settings name one. Raises `ConfigError`."""
    table = settings.extension(TorchServeSettings)
    if not table.has_own_port(settings):
        return ()
    access, host, port = table.management_access_rule(settings), table.management_host, table.management_port
    listener = bind(host, port, shared=shared, setting="torchserve.management_port")
    return (ListeningSocket(listener, management.app, "torchserve_management_listening", access=access),)
