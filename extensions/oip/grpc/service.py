"""The methods of inference.GRPCInferenceService. Each reads a message, does what HTTP does, and writes a message."""

# D91: docs/design/protocols.md
from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from penstock.extensions.oip.gateway.infer_request import InferRequest
from penstock.extensions.oip.gateway.inference import InferCaller, Inference
from penstock.extensions.oip.gateway.metadata import EXTENSIONS, PLATFORM, model_config, model_metadata
from penstock.extensions.oip.gateway.repository import Repository
from penstock.extensions.oip.grpc.messages import (
    POOL,
    SERVICE,
    answer_message,
    infer_request,
    message_class,
    plain_parameters,
    split_request,
    stream_error,
    stream_message,
    wants_final,
)
from penstock.extensions.oip.grpc.probes import probe_services
from penstock.gateway.asgi.connection import ClientConnection
from penstock.gateway.asgi.problems import NotSupported
from penstock.gateway.asgi.wire import ClientGone
from penstock.gateway.models.registry import VersionEntry
from penstock.gateway.rpc.guard import Rpc, RpcGuard, RpcMethod
from penstock.gateway.rpc.pool import parsed
from penstock.gateway.rpc.refusals import refusal_of
from penstock.gateway.rpc.server import RpcAddress, RpcPort, RpcShared
from penstock.gateway.rpc.streams import RequestStreams
from penstock.gateway.services import Services

_MODEL = "/v2/models/{model}"
INFER = f"{_MODEL}/infer"
_REPOSITORY = "/v2/repository/models/{model}"
# Methods that clients of Triton may call and penstock does not have, and why.
UNSERVED = {
    "ModelStatistics": "statistics per model: GET /metrics has them",
    "TraceSetting": "trace settings: traces are sent by OpenTelemetry",
    "LogSettings": "log settings: they stand in penstock's own settings",
    **{
        f"{kind}SharedMemory{what}": "shared memory: a job's input outlives its request"
        for kind in ("System", "Cuda")
        for what in ("Status", "Register", "Unregister")
    },
}


class InferenceService:
    """The methods except ModelStreamInfer. `requests` and `predictions`: the permits that calls take."""

    def __init__(self, services: Services, inference: Inference, repository: Repository, guard: RpcGuard) -> None:
        self._inference = inference
        self._limits = services.settings.gateway
        self._guard = guard
        self._repository = repository
        self._health = services.health
        self._requests = services.requests
        self._predictions = services.predictions

    def handlers(self) -> dict[str, Any]:
        """gRPC's handlers by the names of methods, except ModelStreamInfer."""
        add, permits = self._guard.unary, self._requests
        manage = partial(RpcMethod, permits=permits, verb="POST")
        return {
            "ServerLive": add(RpcMethod("ServerLive", "", None), self.server_live),
            "ServerReady": add(RpcMethod("ServerReady", "", None), self.server_ready),
            "ServerMetadata": add(RpcMethod("ServerMetadata", "/v2", permits), self.server_metadata),
            "ModelReady": add(RpcMethod("ModelReady", f"{_MODEL}/ready", permits), self.model_ready),
            "ModelMetadata": add(RpcMethod("ModelMetadata", _MODEL, permits), self.model_metadata),
            "ModelConfig": add(RpcMethod("ModelConfig", f"{_MODEL}/config", permits), self.model_config),
            "ModelInfer": add(RpcMethod("ModelInfer", INFER, self._predictions, "POST"), self.model_infer),
            "RepositoryIndex": add(manage("RepositoryIndex", "/v2/repository/index"), self.repository_index),
            "RepositoryModelLoad": add(manage("RepositoryModelLoad", f"{_REPOSITORY}/load"), self.load),
            "RepositoryModelUnload": add(manage("RepositoryModelUnload", f"{_REPOSITORY}/unload"), self.unload),
            **{name: add(manage(name, "/v2/logging"), partial(_refuse, why)) for name, why in UNSERVED.items()},
        }

    async def server_live(self, rpc: Rpc, message: bytes) -> bytes:
        return _written("ServerLiveResponse", live=True)

    async def server_ready(self, rpc: Rpc, message: bytes) -> bytes:
        return _written("ServerReadyResponse", ready=await self._health.is_ready())

    async def server_metadata(self, rpc: Rpc, message: bytes) -> bytes:
        return _written("ServerMetadataResponse", name=PLATFORM, version="2", extensions=EXTENSIONS)

    async def model_ready(self, rpc: Rpc, message: bytes) -> bytes:
        asked = parsed(message_class("ModelReadyRequest"), message)
        return _written("ModelReadyResponse", ready=not await self._inference.unready(asked.name, asked.version))

    async def model_metadata(self, rpc: Rpc, message: bytes) -> bytes:
        asked = parsed(message_class("ModelMetadataRequest"), message)
        return _written("ModelMetadataResponse", **model_metadata(*await self._inference.find(asked.name, asked.version)))

    async def model_config(self, rpc: Rpc, message: bytes) -> bytes:
        asked = parsed(message_class("ModelConfigRequest"), message)
        config = model_config(*await self._inference.find(asked.name, asked.version))
        # Versions are numbers there, and texts here.
        del config["version_policy"]
        return _written("ModelConfigResponse", config=config)

    async def model_infer(self, rpc: Rpc, message: bytes) -> bytes:
        request, raw = split_request(message, max_bytes=self._limits.max_json_bytes)
        read, size = partial(_read, request, raw), len(message)
        answering = self._inference.answer(
            request.model_name, request.model_version, read, asking_of(rpc, rpc.connection), size=size
        )
        # What waits for the answer holds nothing of the message (D145).
        del message, request, raw, read
        return answer_message(*await answering)

    async def stream_answers(self, rpc: Rpc, message: bytes, connection: ClientConnection) -> AsyncIterator[bytes]:
        """The answers to one request of a stream: one per chunk if the model streams, else one. A refusal is an answer too."""
        request_id = ""
        try:
            caller = self._guard.admit(rpc.head, rpc.address)
            with self._guard.permit_in(self._predictions, caller):
                request, raw = split_request(message, max_bytes=self._limits.max_json_bytes)
                request_id = request.id
                answers = self._answers(request, raw, asking_of(rpc, connection), len(message))
                del message, request, raw
                async for answer in answers:
                    yield answer
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 - one request of a stream fails alone
            refusal = refusal_of(error, method=rpc.method.name, given_id=rpc.head.get(b"x-request-id"))
            yield stream_error(refusal.text, request_id)

    async def _answers(self, request: Any, raw: Sequence[memoryview], asking: InferCaller, size: int) -> AsyncIterator[bytes]:
        model, version = request.model_name, request.model_version
        read, wants = partial(_read, request, raw), wants_final(request)
        _, chosen = await self._inference.find(model, version)
        if chosen.info is None or not chosen.info.streams:
            answering = self._inference.answer(model, version, read, asking, size=size)
            del request, raw, read
            yield stream_message(*await answering, is_final=True if wants else None)
            return
        chunks = self._inference.chunks(model, version, read, asking, size=size)
        del request, raw, read
        async for asked, chunk in chunks:
            if chunk.tensors or wants:
                yield stream_message(asked, chunk, is_final=not chunk.tensors if wants else None)

    async def repository_index(self, rpc: Rpc, message: bytes) -> bytes:
        asked = parsed(message_class("RepositoryIndexRequest"), message)
        return _written("RepositoryIndexResponse", models=await self._repository.rows(ready_only=asked.ready))

    async def load(self, rpc: Rpc, message: bytes) -> bytes:
        asked = parsed(message_class("RepositoryModelLoadRequest"), message)
        await self._repository.load_model(asked.model_name, plain_parameters(asked.parameters))
        return b""

    async def unload(self, rpc: Rpc, message: bytes) -> bytes:
        asked = parsed(message_class("RepositoryModelUnloadRequest"), message)
        await self._repository.unload_model(asked.model_name, plain_parameters(asked.parameters))
        return b""


def asking_of(rpc: Rpc, connection: ClientConnection) -> InferCaller:
    """The caller of an inference, who waits no longer than the call's deadline."""
    return InferCaller(rpc.caller, connection, rpc.headers, rpc.head, rpc.scope, within_s=rpc.remaining_s)


def _read(request: Any, raw: Sequence[memoryview], version: VersionEntry) -> InferRequest:
    return infer_request(request, raw)


def _written(kind: str, /, **members: Any) -> bytes:
    return POOL.written(f"inference.{kind}", **members)


async def _refuse(why: str, rpc: Rpc, message: bytes) -> bytes:
    raise NotSupported(f"penstock does not serve {why}")


def inference_port(services: Services, inference: Inference, repository: Repository, shared: RpcShared) -> RpcPort:
    """The port that `gateway.grpc_port` names."""
    guard, table = shared.guard, shared.table
    service = InferenceService(services, inference, repository, guard)
    streams = RequestStreams(service.stream_answers, guard)
    stream = guard.stream(RpcMethod("ModelStreamInfer", INFER, shared.streams, "POST"), streams.serve)
    methods = {
        SERVICE: {**service.handlers(), "ModelStreamInfer": stream},
        **probe_services(services.health, services.lifetime, POOL, (SERVICE,), guard=guard, streams=shared.streams),
    }
    address = RpcAddress(table.host, table.grpc_port, "gateway.grpc_port")
    return RpcPort(address, methods, shared, on_stop=streams.stop)
