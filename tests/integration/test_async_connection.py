"""The connections of the gateway's client, on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from penstock.broker.store.connection import connect_async


async def test_a_cancel_that_comes_as_a_command_was_sent_is_not_lost(redis_url: str) -> None:
    """A gateway once outlived SIGTERM: its registry read was cancelled just as the command was sent, and went on for ever."""
    client = connect_async(redis_url, name="link-test")
    connection: Any = await client.connection_pool.get_connection()
    send, loop = connection._send_packed_command, asyncio.get_running_loop()

    async def sent_and_cancelled(command: Iterable[bytes]) -> None:
        await send(command)
        loop.call_soon(asking.cancel)

    connection._send_packed_command = sent_and_cancelled
    asking = asyncio.create_task(connection.send_command("PING"))
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not connection.is_connected, "the next one would read the reply to this command"
    connection._send_packed_command = send
    await client.connection_pool.release(connection)
    assert await client.ping()
    await client.aclose()
