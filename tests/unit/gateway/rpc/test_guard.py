from __future__ import annotations

import pytest

pytest.importorskip("grpc")

from penstock.gateway.rpc.guard import address_of


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:50312", "127.0.0.1"), ("ipv6:%5B::1%5D:50312", "::1"), ("ipv6:[::1]:5", "::1"), ("unix:/a", "/a")],
)
def test_a_peer_has_an_address(peer: str, address: str) -> None:
    assert address_of(peer) == address
