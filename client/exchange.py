"""One HTTP exchange in httpx2's terms: an `HttpCall` as a request, a response as an `Answer`, an error as `TransportFault`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

import penstock
from penstock.client import protocol
from penstock.client.protocol import Answer, HttpCall
from penstock.client.retries import TransportFault
from penstock.errors import BadRequest
from penstock.running_stack import running_gateway

CONNECT_TIMEOUT_S = 5.0
UPLOAD_FORM = {"purpose": "batch"}
# Each job of a `map` may have its own long poll. With the default of 100 connections, submits would wait behind the polls.
CONNECTIONS = httpx2.Limits(max_connections=1_000, max_keepalive_connections=100)
_START = "start a gateway with `penstock up`, or name its address in PENSTOCK_URL"
_AUTHORITY = "if its certificate is of an authority of your own, name the authority's file in SSL_CERT_FILE"
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The gateway that a client talks to. `timeout_s` bounds the silence in one exchange, on top of the call's own `wait_s`."""

    base_url: str
    api_key: str | None
    timeout_s: float

    @contextmanager
    def open_request(self, call: HttpCall) -> Iterator[dict[str, Any]]:
        """The keyword arguments for `httpx2.Client.request`. A file to be uploaded is open until the block ends."""
        arguments = self.request_arguments(call)
        if call.upload is None:
            yield arguments
            return
        try:
            file = call.upload.open("rb")
        except OSError as fault:
            raise BadRequest(f"cannot read the input file {call.upload}: {fault.strerror}") from fault
        with file:
            yield {**arguments, "files": {"file": (call.upload.name, file, "application/octet-stream")}, "data": UPLOAD_FORM}

    def request_arguments(self, call: HttpCall) -> dict[str, Any]:
        """The keyword arguments of a request that uploads no file."""
        url = protocol.resolve(self.base_url, call.url)
        return {
            "method": call.method,
            "url": url,
            "params": dict(call.params) or None,
            "headers": {**call.headers, **self._credentials(url)},
            "content": call.content or None,
            "timeout": httpx2.Timeout(self.timeout_s, read=self.timeout_s + call.wait_s, connect=CONNECT_TIMEOUT_S, pool=None),
        }

    def transport_fault(self, error: httpx2.TransportError) -> TransportFault:
        reason = str(error) or type(error).__name__
        if isinstance(error, httpx2.TimeoutException) and not isinstance(error, _NEVER_SENT):
            reason = f"no answer within {self.timeout_s:g} s"
        return TransportFault(
            f"cannot reach {self.base_url}: {reason}",
            sent=not isinstance(error, _NEVER_SENT),
            hint=_AUTHORITY if "CERTIFICATE_VERIFY_FAILED" in reason else _START,
        )

    def _credentials(self, url: str) -> dict[str, str]:
        # A signed link may lead to another host, which must not see the key.
        if not self.api_key or not protocol.same_origin(self.base_url, url):
            return {}
        return {"authorization": f"Bearer {self.api_key}"}


def gateway_address(
    base_url: str | None, api_key: str | None, timeout_s: float, *, env: Mapping[str, str] = os.environ
) -> GatewayAddress:
    """The given address and key, else PENSTOCK_URL and PENSTOCK_API_KEY; without an address, the `penstock up` of this folder,
    else the local default.
    """
    given = base_url or env.get("PENSTOCK_URL") or running_gateway(Path.cwd(), env)
    return GatewayAddress(protocol.base_url(given, env), api_key or env.get("PENSTOCK_API_KEY"), timeout_s)


def user_agent() -> dict[str, str]:
    return {"user-agent": f"penstock/{penstock.__version__}"}


def head_of(response: httpx2.Response) -> Answer:
    """The status and headers of a response before its content is read. Read an error's content first."""
    content = response.content if response.status_code >= 400 else b""
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, content)


def answer_of(response: httpx2.Response) -> Answer:
    return Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()}, response.content)
