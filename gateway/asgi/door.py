"""The limits on open connections, in total and per address. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence

MAX_CONNECTIONS = 12_000
MAX_PER_ADDRESS = 3_000
THIS_MACHINE = ("127.0.0.0/8", "::1/128", "::ffff:127.0.0.0/104")


class Door:
    """How many connections are open, in total and per address. An address in one of the networks `exempt` is not counted.

    All callers behind a proxy share its address, so name proxies in `exempt`. Callers on this machine are never counted.
    """

    def __init__(self, *, most: int = MAX_CONNECTIONS, per_address: int = MAX_PER_ADDRESS, exempt: Sequence[str] = ()) -> None:
        self._most = most
        self._per_address = per_address
        self._exempt = [ipaddress.ip_network(network) for network in (*exempt, *THIS_MACHINE)]
        self._open: Counter[str] = Counter()
        self._total = 0

    def enter(self, address: str) -> str:
        """Count a connection; returns why it is refused, empty if it is not. Every call is followed by one of `leave`."""
        self._total += 1
        self._open[address] += 1
        if self._total > self._most:
            return "The gateway has too many open connections"
        if self._open[address] > self._per_address and not self._is_exempt(address):
            return "This address has too many open connections to the gateway"
        return ""

    def leave(self, address: str) -> None:
        self._total -= 1
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _is_exempt(self, address: str) -> bool:
        try:
            client = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return True  # a Unix socket has no address
        return any(client in network for network in self._exempt)
