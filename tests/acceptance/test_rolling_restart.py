"""A gateway is replaced on a shared port, under load on kept and on new connections, and no request is broken off."""

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


async def call_until(stopping: asyncio.Event, connection: Connection, number: int, ended: Counter[str]) -> None:
    """Send requests over one kept connection or, every third client, each over a connection of its own."""
    is_new_each_time = number % 3 == 2
    while not stopping.is_set():
        try:
            if number % 2:
                answer = await connection.ask("GET", "/v1/models")
            else:
                json_body = {"content-type": "application/json"}
                answer = await connection.ask("POST", "/v1/models/square/jobs", json_body, b'{"x": 4}')
            ended[str(answer.status)] += 1
            ended["last answers"] += answer.headers.get("connection") == "close"
        except (OSError, asyncio.IncompleteReadError) as broken:
            ended[f"{'new' if is_new_each_time else 'kept'} connection broken: {type(broken).__name__}"] += 1
            await connection.close()
        if is_new_each_time:
            await connection.close()
        await asyncio.sleep(0.002 if is_new_each_time else 0.02)  # shorter than the grace in which clients are told to leave


async def test_a_rolling_restart_breaks_no_request(redis_url: str, tmp_path: Path) -> None:
    """A gateway that stopped closed its idle connections at once, some under a request that had just been sent; and it reset
    new connections that the kernel had accepted for it.
    """
    rolling, ended, stopping = Rolling(redis_url, tmp_path), Counter[str](), asyncio.Event()
    gateway = await rolling.start()
    connections = [Connection(rolling.port) for _ in range(CLIENTS)]
    async with asyncio.TaskGroup() as load:
        for number, connection in enumerate(connections):
            load.create_task(call_until(stopping, connection, number, ended))
        replacement = await rolling.start()
        await stop(gateway)
        stopping.set()
    for connection in connections:
        await connection.close()
    await stop(replacement)
    assert set(ended) == {"200", "202", "last answers"}, ended
    assert ended["last answers"] >= CLIENTS
