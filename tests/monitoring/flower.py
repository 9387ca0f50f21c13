"""`penstock flower` as a real process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from penstock.loadtest.stack import free_port
from tests.eventually import eventually

LOGIN = ("watcher", "a-password-for-tests")


@contextmanager
def flower(folder: Path, *words: str, **env: str) -> Iterator[httpx2.Client]:
    """A client of a new Flower process that runs in `folder`; the client sends the login.

    `words` are options of the command, `env` are further environment variables.
    """
    port = free_port()
    logins = folder / "logins"
    logins.write_text(":".join(LOGIN) + "\n")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "FLOWER_"))}
    command = [sys.executable, "-m", "penstock", "flower", f"--port={port}", f"--basic-auth-file={logins}", *words]
    with (folder / "flower.log").open("wb") as log:
        process = subprocess.Popen(command, env={**plain, **env}, cwd=folder, stdout=log, stderr=log)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", auth=LOGIN, timeout=20.0) as client:
            eventually(lambda: process.poll() is None and answers(client), timeout_s=60.0)
            yield client
    finally:
        process.terminate()
        process.wait(timeout=30.0)


def answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/healthcheck").status_code == 200
    except httpx2.TransportError:
        return False


def depths(client: httpx2.Client) -> dict[str, int]:
    """The number of waiting jobs, by the name that Flower shows for the queue."""
    return {queue["name"]: queue["messages"] for queue in client.get("/api/queues/length").json()["active_queues"]}


def tasks(client: httpx2.Client, **params: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/api/tasks", params=params).json()
    return found
