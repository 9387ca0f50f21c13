"""The stack of the Open Inference Protocol's tests with a gRPC port, and calls of it without any client's package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import GatewayClient
from tests.extensions.oip.acceptance.oip_stack import oip_stack

SERVICE = "inference.GRPCInferenceService"


@dataclass(frozen=True, slots=True)
class GrpcStack:
    http: GatewayClient
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def grpc_stack(redis_url: str, folder: Path, **settings: Any) -> Iterator[GrpcStack]:
    port = free_port()
    with oip_stack(redis_url, folder, grpc_port=port, **settings) as http:
        yield GrpcStack(http, port)


def call(channel: grpc.Channel, method: str, message: bytes = b"", *, service: str = SERVICE, **more: Any) -> bytes:
    """One call with the bytes of its message. Raises `grpc.RpcError`."""
    answer: bytes = channel.unary_unary(f"/{service}/{method}")(message, timeout=more.pop("timeout", 30.0), **more)
    return answer
