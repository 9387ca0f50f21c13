"""A gateway is replaced on a shared port, under load on kept connections, and no request is broken off."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from penstock.loadtest.stack import free_port
from tests.acceptance.many_clients import Connection

CLIENTS = 16


class Rolling:
    """Gateway processes that share a port, as `gateway.processes` and a rolling update have them."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.port = free_port()
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")} | {
            "PENSTOCK_REDIS_URL": redis_url,
            "PENSTOCK_STORE__STATE_DIR": str(folder),
            "PENSTOCK_GATEWAY__PORT": str(self.port),
            "PENSTOCK_DIE_WITH_PARENT": "1",
            "PENSTOCK_MODELS": json.dumps({"square": {"source": "square.py:Square"}}),
        }

    async def start(self) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "penstock.gateway", "--shared-port"]
        gateway = await asyncio.create_subprocess_exec(*command, env=self._env, stdout=asyncio.subprocess.PIPE)
        assert gateway.stdout is not None
        while b"gateway_listening" not in (line := await gateway.stdout.readline()):
            assert line, "the gateway ended before it listened"
        return gateway


async def stop(gateway: asyncio.subprocess.Process) -> None:
    gateway.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(gateway.wait(), 60.0) == 0


async def test_a_rolling_restart_breaks_no_request_on_a_kept_connection(redis_url: str, tmp_path: Path) -> None:
    """A gateway that stopped closed its idle connections at once, some under a request that had just been sent."""
    rolling, ended, stopping = Rolling(redis_url, tmp_path), Counter[str](), asyncio.Event()

    async def call_on(connection: Connection, number: int) -> None:
        while not stopping.is_set():
            was_kept = connection.is_kept
            try:
                if number % 2:
                    answer = await connection.ask("GET", "/v1/models")
                else:
                    answer = await connection.ask(
                        "POST", "/v1/models/square/jobs", {"content-type": "application/json"}, b'{"x": 4}'
                    )
                ended[str(answer.status)] += 1
                ended["last answers"] += answer.headers.get("connection") == "close"
            except (OSError, asyncio.IncompleteReadError) as broken:
                # The kernel may give a new connection to a port that closes in this moment, and resets it before anybody reads.
                ended[f"broken: {type(broken).__name__}" if was_kept else "not begun"] += 1
                await connection.close()
            await asyncio.sleep(0.02)  # shorter than the grace in which the gateway tells its clients to leave

    gateway = await rolling.start()
    connections = [Connection(rolling.port) for _ in range(CLIENTS)]
    async with asyncio.TaskGroup() as load:
        for number, connection in enumerate(connections):
            load.create_task(call_on(connection, number))
        replacement = await rolling.start()
        await stop(gateway)
        stopping.set()
    for connection in connections:
        await connection.close()
    await stop(replacement)
    assert set(ended) - {"not begun"} == {"200", "202", "last answers"}, ended
    assert ended["not begun"] <= CLIENTS, ended
    assert ended["last answers"] >= CLIENTS
