"""The gRPC port of the Open Inference Protocol: its methods, health and reflection."""

# D91: docs/design/protocols.md
from __future__ import annotations

from dataclasses import dataclass

from penstock.extensions.oip.gateway.inference import Inference
from penstock.extensions.oip.gateway.repository import Repository
from penstock.extensions.oip.grpc.messages import POOL, SERVICE
from penstock.extensions.oip.grpc.service import INFER, InferenceService
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.auth.keys import Shares
from penstock.gateway.rpc.guard import RpcMethod
from penstock.gateway.rpc.probes import probe_services
from penstock.gateway.rpc.server import RpcAddress, RpcPort, RpcShared
from penstock.gateway.rpc.streams import RequestStreams
from penstock.gateway.telemetry.health import Health


@dataclass(frozen=True, slots=True)
class GrpcParts:
    """What the gRPC port has in common with the gateway's HTTP."""

    inference: Inference
    repository: Repository
    health: Health
    lifetime: Lifetime
    requests: Shares
    predictions: Shares


def inference_port(parts: GrpcParts, shared: RpcShared) -> RpcPort:
    """The port that `gateway.grpc_port` names."""
    guard, table = shared.guard, shared.table
    service = InferenceService(
        parts.inference,
        shared.options,
        guard=guard,
        repository=parts.repository,
        health=parts.health,
        requests=parts.requests,
        predictions=parts.predictions,
    )
    streams = RequestStreams(service.stream_answers, guard)
    stream = guard.stream(RpcMethod("ModelStreamInfer", INFER, shared.streams, "POST"), streams.serve)
    services = {
        SERVICE: {**service.handlers(), "ModelStreamInfer": stream},
        **probe_services(parts.health, parts.lifetime, POOL, (SERVICE,), guard=guard, streams=shared.streams),
    }
    address = RpcAddress(table.host, table.grpc_port, "gateway.grpc_port")
    return RpcPort(address, services, shared, on_stop=streams.stop)
