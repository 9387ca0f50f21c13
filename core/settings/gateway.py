"""Where a gateway listens, and the bounds of what it has open at once."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from penstock.settings.keys import Table
from penstock.settings.models import Count, Seconds

KIB = 1024
MIB = 1024 * KIB


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"write an address or a network such as 10.0.0.0/8 ({error})") from None


Network = Annotated[str, AfterValidator(_network)]
# As browsers write it: without a path or a slash at the end. `*` is none, since it would open the API to every page.
Origin = Annotated[str, Field(pattern=r"^https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d{1,5})?$")]


class GatewaySettings(Table):
    """`rate_per_s` and `burst` limit a gateway without keys (rate 0: no limit); with keys, each key has its own limits.

    `max_predictions` answer-now requests, `max_streams` predictions answered with events, `max_waits` long polls, event
    streams and downloads, and `max_requests` of all others are open at once per process; one owner may have a quarter of each,
    and one address a quarter of `max_connections`.
    `proxies` are networks whose addresses may open any number of the `max_connections`; callers on this machine may too. A
    gateway that stops serves for `drain_s` more while clients leave.
    `metrics_port` 0: metrics have no port of their own. `dashboard` None: the dashboard is served on loopback only.
    `root_path` is the path under which a proxy publishes this gateway. `cors_origins`: the origins of the web pages that may
    call the API from a browser.
    `grpc_port`: where `host` also serves the Open Inference Protocol over gRPC; 0: nowhere. With `grpc_certificate` and
    `grpc_key`, files in PEM, that port speaks TLS.
    """

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8080, ge=0, le=65_535)
    processes: Count = 1
    max_requests: Count = 2_048
    max_predictions: Count = 2_048
    max_streams: Count = 2_048
    max_waits: Count = 10_000
    max_connections: Count = 12_000
    proxies: tuple[Network, ...] = ()
    drain_s: float = Field(default=2.0, ge=0)
    max_json_bytes: Count = 4 * MIB
    max_raw_bytes: Count = 32 * MIB
    sync_timeout_s: Seconds = 60.0
    heartbeat_s: Seconds = 15.0
    body_timeout_s: Seconds = 30.0
    idle_timeout_s: Seconds = 15.0
    rate_per_s: float = Field(default=0.0, ge=0)
    burst: Count = 200
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    dashboard: bool | None = None
    root_path: str = Field(default="", pattern=r"^(/[A-Za-z0-9_.~-]+)*$")
    cors_origins: tuple[Origin, ...] = ()
    grpc_port: int = Field(default=0, ge=0, le=65_535)
    grpc_certificate: Path | None = None
    grpc_key: Path | None = None

    @property
    def head_timeout_s(self) -> float:
        """How long the head of a request may take: no longer than its body."""
        return min(10.0, self.body_timeout_s)

    @property
    def max_connections_per_address(self) -> int:
        return max(1, self.max_connections // 4)

    @model_validator(mode="after")
    def _certificate_has_its_key(self) -> GatewaySettings:
        if (self.grpc_certificate is None) != (self.grpc_key is None):
            raise ValueError("grpc_certificate and grpc_key are set together: files of a certificate and of its private key")
        return self
