"""gRPC's own services beside the protocol: health, for load balancers, and reflection, for tools that know no .proto file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import SERVICE_NAME, ReflectionServicer

from penstock.errors import BadRequest, NotFound
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.auth.keys import Shares
from penstock.gateway.rpc.guard import Rpc, RpcGuard, RpcMethod
from penstock.gateway.rpc.pool import MessagePool, parsed
from penstock.gateway.telemetry.health import Health

HEALTH = "grpc.health.v1.Health"
REFLECTION: str = SERVICE_NAME
_WATCH_S = 1.0
_Status = health_pb2.HealthCheckResponse.ServingStatus


def probe_services(
    health: Health,
    lifetime: Lifetime,
    pool: MessagePool,
    names: Sequence[str],
    *,
    guard: RpcGuard,
    streams: Shares,
) -> dict[str, dict[str, Any]]:
    """Health and reflection for the services with these names, whose messages are in the pool."""
    return {
        HEALTH: GrpcHealth(health, lifetime, names, streams=streams).handlers(guard),
        REFLECTION: Reflection(pool, names, streams=streams).handlers(guard),
    }


class GrpcHealth:
    """The health of the whole server: SERVING if it can serve every declared model.

    `names` are the services that may be asked for. `streams`: the permits of watchers.
    """

    def __init__(self, health: Health, lifetime: Lifetime, names: Sequence[str], *, streams: Shares) -> None:
        self._names = names
        self._health = health
        self._lifetime = lifetime
        self._streams = streams

    def handlers(self, guard: RpcGuard) -> dict[str, Any]:
        return {
            "Check": guard.unary(RpcMethod("Check", "", None), self.check),
            "Watch": guard.stream(RpcMethod("Watch", "", self._streams), self.watch),
        }

    async def check(self, rpc: Rpc, message: bytes) -> bytes:
        self._require_known(message)
        return _written(await self._health.is_ready())

    async def watch(self, rpc: Rpc) -> None:
        """Sends the health and each change of it, until this gateway stops."""
        message = await rpc.context.read()
        if message is aio.EOF:
            raise BadRequest("the call has no message")
        self._require_known(message)
        told: bool | None = None
        while not self._lifetime.is_draining() or told:
            ready = await self._health.is_ready()
            if ready is not told:
                await rpc.context.write(_written(ready))
            told = ready
            await asyncio.sleep(_WATCH_S)

    def _require_known(self, message: bytes) -> None:
        service = parsed(health_pb2.HealthCheckRequest, message).service
        if service and service not in self._names:
            hint = f"Leave it empty, or send {' or '.join(self._names)}."
            raise NotFound(f"there is no service {service[:80]!r}", hint=hint)


def _written(ready: bool) -> bytes:
    status = _Status.SERVING if ready else _Status.NOT_SERVING
    made: bytes = health_pb2.HealthCheckResponse(status=status).SerializeToString()
    return made


class Reflection:
    """The descriptors of the services. They name only methods and messages, so every role may read them."""

    def __init__(self, pool: MessagePool, names: Sequence[str], *, streams: Shares) -> None:
        for module in (health_pb2, reflection_pb2):
            file = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(file)
            pool.descriptors.Add(file)
        self._servicer = ReflectionServicer((*names, HEALTH, REFLECTION), pool.descriptors)
        self._streams = streams

    def handlers(self, guard: RpcGuard) -> dict[str, Any]:
        method = RpcMethod("ServerReflectionInfo", "/v2", self._streams)
        return {"ServerReflectionInfo": guard.stream(method, self.answer)}

    async def answer(self, rpc: Rpc) -> None:
        while (message := await rpc.context.read()) is not aio.EOF:
            asked = parsed(reflection_pb2.ServerReflectionRequest, message)
            for answer in self._servicer.ServerReflectionInfo(iter((asked,)), None):
                await rpc.context.write(answer.SerializeToString())
