"""Requests to a checked address: a host's name is looked up once, so a name server cannot answer differently later."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import httpx2

from penstock.errors import InvalidInput
from penstock.outbound.urls import CheckedUrl, is_public

Resolve = Callable[[str, int], list[str]]


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


async def address_of(url: CheckedUrl, *, listed: bool, resolve: Resolve = resolve) -> str:
    """The address to call. Raises `InvalidInput` unless all of the host's addresses are public, or its URL is `listed`."""
    addresses = await asyncio.to_thread(resolve, url.host, url.port)
    if not addresses or not (listed or all(map(is_public, addresses))):
        # Both cases get one message, so that callers cannot find out which names exist inside.
        raise InvalidInput(f"{url.host} has no public address")
    return addresses[0]


def pinned_request(
    client: httpx2.AsyncClient,
    method: str,
    url: CheckedUrl,
    address: str,
    *,
    headers: Mapping[str, str] = MappingProxyType({}),
    content: bytes | None = None,
) -> httpx2.Request:
    """A request to this address of the URL's host. The certificate has to be that of the host."""
    host = f"[{address}]" if ":" in address else address
    return client.build_request(
        method,
        f"{url.scheme}://{host}:{url.port}{url.target}",
        headers={**headers, "host": url.netloc, "accept-encoding": "identity", "user-agent": "penstock"},
        content=content,
        extensions={"sni_hostname": url.host},
    )
