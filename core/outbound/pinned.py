"""Requests to a checked address: a host's name is looked up once, so a name server cannot answer differently later."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import httpx2

from penstock.errors import InvalidInput
from penstock.outbound.urls import CheckedUrl, is_public

Resolve = Callable[[str, int], list[str]]
_MOST_ADDRESSES = 4


@cache
def trust(ca: str) -> ssl.SSLContext:
    """Trusts the authorities in the file `ca` alone; the public ones if it is empty. Raises `OSError`."""
    return ssl.create_default_context(cafile=ca) if ca else httpx2.create_ssl_context(trust_env=False)


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, best first; none if it is not known."""
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # A name with a label of more than 63 letters is a UnicodeError.
        return []
    return [str(address[4][0]) for address in entries]


def callable_addresses(url: CheckedUrl, found: list[str], *, listed: bool) -> list[str]:
    """Those of a host's addresses to call, best first. Raises `InvalidInput` unless all are public, or its URL is `listed`."""
    if not found or not (listed or all(map(is_public, found))):
        # Both cases get one message, so that callers cannot find out which names exist inside.
        raise InvalidInput(f"{url.host} has no public address")
    return found[:_MOST_ADDRESSES]


async def send_pinned(
    client: httpx2.AsyncClient,
    method: str,
    url: CheckedUrl,
    addresses: list[str],
    *,
    within_s: float,
    headers: Mapping[str, str] = MappingProxyType({}),
    content: bytes | None = None,
) -> httpx2.Response:
    """The head of the answer of the first of these addresses that takes a connection; its body is to be read.

    `within_s`: for all connections together, and for each step after. The certificate has to be that of the URL's host.
    """
    failed: httpx2.TransportError | None = None
    for address in addresses:
        host = f"[{address}]" if ":" in address else address
        request = client.build_request(
            method,
            f"{url.scheme}://{host}:{url.port}{url.target}",
            headers={**headers, "host": url.netloc, "accept-encoding": "identity", "user-agent": "penstock"},
            content=content,
            extensions={"sni_hostname": url.host},
            timeout=httpx2.Timeout(within_s, connect=within_s / len(addresses)),
        )
        try:
            return await client.send(request, stream=True, follow_redirects=False)
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            failed = error
    assert failed is not None
    raise failed
