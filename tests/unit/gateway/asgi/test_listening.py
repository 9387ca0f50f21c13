"""What the kernel does with connections to a listener that is about to close."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from penstock.gateway.asgi.listening import are_queued, bind, turn_newcomers_away


@pytest.fixture(params=[True, False], ids=["shared", "alone"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    with closing(bind("127.0.0.1", 0, shared=request.param)) as found:
        found.listen(16)
        yield found


def is_connected(client: socket.socket) -> bool:
    return bool(select.select([], [client], [], 0.1)[1])


def connecting(listener: socket.socket) -> socket.socket:
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(listener.getsockname())
    return client


def test_a_connection_that_nobody_has_accepted_is_seen(listener: socket.socket) -> None:
    assert not are_queued([listener])
    with closing(connecting(listener)) as client:
        assert is_connected(client)
        assert are_queued([listener])
        listener.accept()[0].close()
        assert not are_queued([listener])


def test_a_listener_that_shares_its_port_turns_newcomers_away_and_keeps_those_who_came_before(listener: socket.socket) -> None:
    """A connection to a port that is about to close was accepted by the kernel, and reset by the close."""
    shares_port = bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT))
    with closing(connecting(listener)) as early:
        assert is_connected(early)
        assert turn_newcomers_away([listener]) is shares_port
        with closing(connecting(listener)) as late:
            assert is_connected(late) is not shares_port
            served, _ = listener.accept()
            with closing(served):
                early.sendall(b"still heard")
                served.settimeout(5.0)
                assert served.recv(64) == b"still heard"


def test_a_connection_that_was_turned_away_reaches_a_sibling() -> None:
    closed = bind("127.0.0.1", 0, shared=True)
    closed.listen(16)
    assert turn_newcomers_away([closed])
    with closing(connecting(closed)) as client, closing(bind(*closed.getsockname(), shared=True)) as sibling:
        sibling.listen(16)
        closed.close()
        assert select.select([], [client], [], 10.0)[1]
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert are_queued([sibling])
