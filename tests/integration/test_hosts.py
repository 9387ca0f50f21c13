"""Hosts of the drills: each hears the others until its link is cut, and what it sent meanwhile does not arrive."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.eventually import eventually
from tests.hosts import Host, HostNetwork, host_network, why_no_network

_ECHO = """
import socket
with socket.create_server(("{}", 7_000)) as at:
    accepted = []
    while True:
        accepted.append(at.accept()[0])
        accepted[-1].sendall(b"here")
"""
_ASK = "import socket\nprint(socket.create_connection(('{}', 7_000), 0.5).recv(4))"


@pytest.fixture(scope="module")
def network() -> Iterator[HostNetwork]:
    reason = why_no_network()
    if reason:
        pytest.skip(reason)
    with host_network(2) as network:
        yield network


@pytest.fixture(scope="module")
def server(network: HostNetwork) -> Iterator[Host]:
    host = network.hosts[0]
    process = subprocess.Popen([*host.within, sys.executable, "-c", _ECHO.format(host.address)])
    try:
        eventually(lambda: hears(network.gate, host))
        yield host
    finally:
        process.kill()
        process.wait()


def hears(asker: Host, other: Host) -> bool:
    command = [*asker.within, sys.executable, "-c", _ASK.format(other.address)]
    return subprocess.run(command, capture_output=True, check=False).stdout == b"b'here'\n"


def test_hosts_hear_each_other_until_a_link_is_cut(network: HostNetwork, server: Host) -> None:
    assert network.can_cut
    assert hears(network.hosts[1], server)
    server.cut()
    assert not hears(network.hosts[1], server)
    assert not hears(network.gate, server)
    server.join()
    assert eventually(lambda: hears(network.hosts[1], server))


def test_a_connection_of_a_host_that_is_cut_falls_silent_and_does_not_end(network: HostNetwork, server: Host) -> None:
    with socket.create_connection((server.address, 7_000), 5.0) as connection:
        assert connection.recv(4) == b"here"
        server.cut()
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(4)
        server.join()


def test_a_host_has_ports_of_its_own(network: HostNetwork, server: Host) -> None:
    assert not hears(network.gate, network.gate)


def test_without_the_rights_all_hosts_are_loopback_and_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    with host_network(3) as network:
        assert network.hosts == [Host()] * 3
        assert not network.can_cut
        assert network.what == "loopback, since only root may make network namespaces"
