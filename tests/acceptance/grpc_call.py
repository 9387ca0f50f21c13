"""Calls of a gateway's gRPC port without any client's package."""

from __future__ import annotations

from typing import Any

import grpc

SERVICE = "inference.GRPCInferenceService"


def call(channel: grpc.Channel, method: str, message: bytes = b"", *, service: str = SERVICE, **more: Any) -> bytes:
    """One call with the bytes of its message. Raises `grpc.RpcError`."""
    answer: bytes = channel.unary_unary(f"/{service}/{method}")(message, timeout=more.pop("timeout", 30.0), **more)
    return answer
