"""The gRPC ports of TorchServe's surface: inference and management, each with health and reflection."""

from __future__ import annotations

from penstock.extensions.oip.grpc.probes import probe_services
from penstock.extensions.torchserve.grpc.inference import InferenceApis
from penstock.extensions.torchserve.grpc.management import ManagementApis
from penstock.extensions.torchserve.grpc.messages import INFERENCE_SERVICE, MANAGEMENT_SERVICE, POOL
from penstock.extensions.torchserve.management.service import ModelManagement
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.gateway.rpc.server import RpcAddress, RpcPort, RpcShared
from penstock.gateway.services import Services


class TorchServePorts:
    """Makes the ports that the settings name."""

    def __init__(self, services: Services, own: TorchServeSettings, management: ModelManagement, shared: RpcShared) -> None:
        self._services = services
        self._own = own
        self._shared = shared
        self._inference = InferenceApis(services, own, shared.guard, streams=shared.streams)
        self._management = ManagementApis(management, shared.guard, requests=services.requests, audit=services.audit)

    def ports(self) -> list[RpcPort]:
        own, table = self._own, self._shared.table
        inference = RpcAddress(table.host, own.grpc_inference_port, "torchserve.grpc_inference_port")
        management = RpcAddress(own.management_host, own.grpc_management_port, "torchserve.grpc_management_port")
        return [
            *([self._inference_port(inference)] if inference.port else []),
            *([self._management_port(management)] if management.port else []),
        ]

    def _inference_port(self, address: RpcAddress) -> RpcPort:
        services = {INFERENCE_SERVICE: self._inference.handlers(), **self._probes(INFERENCE_SERVICE)}
        return RpcPort(address, services, self._shared, on_stop=self._inference.streams.stop)

    def _management_port(self, address: RpcAddress) -> RpcPort:
        services = {MANAGEMENT_SERVICE: self._management.handlers(), **self._probes(MANAGEMENT_SERVICE)}
        return RpcPort(address, services, self._shared)

    def _probes(self, service: str) -> dict[str, dict[str, object]]:
        shared, services = self._shared, self._services
        health, lifetime = services.health, services.lifetime
        return probe_services(health, lifetime, POOL, (service,), guard=shared.guard, streams=shared.streams)
