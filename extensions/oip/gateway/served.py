"""The Open Inference Protocol in a gateway: inference past FastAPI, the other routes, and the gRPC port."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.extensions.oip.gateway.endpoint import InferEndpoint, add_routes
from penstock.extensions.oip.gateway.infer_answer import as_oip, speaks_oip
from penstock.extensions.oip.gateway.inference import Inference
from penstock.extensions.oip.gateway.repository import Repository
from penstock.extensions.oip.gateway.routes import RULES, OpenInference, ServerHealth
from penstock.gateway.asgi.server import ServerBeside
from penstock.gateway.extending import GatewayPart, RpcPart, Wording
from penstock.gateway.services import Services
from penstock.settings.tables import Settings

if TYPE_CHECKING:
    from penstock.gateway.rpc.server import RpcShared


def gateway(services: Services) -> GatewayPart:
    inference, repository = Inference(services), Repository(services)

    def ports(shared: RpcShared) -> Sequence[ServerBeside]:
        # gRPC takes some megabytes, and few gateways serve it.
        from penstock.extensions.oip.grpc.service import inference_port

        return [inference_port(services, inference, repository, shared)] if shared.table.grpc_port else []

    return GatewayPart(
        routers=(repository.router(), OpenInference(services, inference).router(), ServerHealth(services).router()),
        rules=RULES,
        document=add_routes,
        doors=(InferEndpoint(services, inference),),
        wordings=(Wording(speaks_oip, lambda problem, error: as_oip(problem)),),
        rpc=RpcPart(port_in, ports),
    )


def port_in(settings: Settings) -> Mapping[str, int]:
    return {"gateway.grpc_port": settings.gateway.grpc_port}
