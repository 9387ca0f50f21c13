"""docs/platforms.md: what works without the system calls that only Linux has. The tests hide these calls from processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.gateway_process import gateway_process
from tests.acceptance.test_cli import COMMAND, SQUARE, Up, clean_environment, started, stopped

# Python runs this code before any other. `sys.platform` stays "linux", because the standard library and psutil choose their
# modules by `sys.platform`. Calls that penstock makes only if `sys.platform` is "linux" (timerfd) therefore stay too.
WITHOUT = """
import ctypes, os, select, signal
for module, names in {
    os: ("eventfd", "eventfd_read", "eventfd_write", "memfd_create", "pidfd_open", "sched_getaffinity", "sched_setaffinity"),
    select: ("epoll",),
    signal: ("pidfd_send_signal",),
}.items():
    for name in names:
        delattr(module, name)

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Library
"""
CLIENTS = """
import asyncio, sys
from penstock import AsyncClient, Client

async def ask(url):
    async with AsyncClient(url) as client:
        return await (await client.submit("square", {"x": 3})).result(timeout_s=20)

with Client(sys.argv[1]) as client:
    print(client.submit("square", {"x": 4}).result(timeout_s=20), asyncio.run(ask(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python process that lacks the calls in `WITHOUT`."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "sitecustomize.py").write_text(WITHOUT)
    inherited = os.environ.get("PYTHONPATH")
    return clean_environment() | {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), inherited]))}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = started(tmp_path_factory.mktemp("up"), str(SQUARE))
    yield running
    assert stopped(running) == 0


def ran(environment: dict[str, str], *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, env=environment | variables, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["call", "square", '{"x": 4}'], '{"y": 16}'),
        (["jobs", "list"], "square"),
        (["models"], "square"),
        (["workers"], "square"),
        (["config", "show"], "gateway.port"),
        (["devices"], "cores"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_work_against_a_gateway_elsewhere(
    elsewhere: dict[str, str], up: Up, tmp_path: Path, arguments: list[str], shown: str
) -> None:
    found = ran(elsewhere, *COMMAND, *arguments, cwd=tmp_path, PENSTOCK_URL=up.ready["url"])
    assert found.returncode == 0, found.stdout + found.stderr
    assert shown in found.stdout


def test_both_clients_work(elsewhere: dict[str, str], up: Up, tmp_path: Path) -> None:
    found = ran(elsewhere, sys.executable, "-c", CLIENTS, up.ready["url"], cwd=tmp_path)
    assert found.stdout == "{'y': 16} {'y': 9}\n", found.stderr


def test_a_run_is_driven_from_there_while_its_workers_are_on_linux(elsewhere: dict[str, str], up: Up, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"x": 1}\n{"x": 2}\n')
    command = [
        *COMMAND,
        "run",
        "square",
        str(rows),
        "-o",
        str(tmp_path / "out.jsonl"),
        "--state-dir",
        str(up.folder / ".penstock"),
    ]
    found = ran(elsewhere, *command, cwd=tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    outputs = [json.loads(line)["output"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert outputs == [{"y": 1}, {"y": 4}]


def test_a_gateway_runs(elsewhere: dict[str, str], fresh_redis: str, tmp_path: Path) -> None:
    env = {"PYTHONPATH": elsewhere["PYTHONPATH"], "PENSTOCK_DIE_WITH_PARENT": ""}
    with gateway_process(fresh_redis, tmp_path, env=env) as client:
        assert client.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "command",
    [
        [*COMMAND, "up", str(SQUARE)],
        [*COMMAND, "worker", str(SQUARE), "--redis-url", "redis://127.0.0.1:1"],
        [*COMMAND, "run", "square", "rows.jsonl", "-o", "out.jsonl", "--models", str(SQUARE)],
        [sys.executable, "-m", "penstock.workers"],
    ],
    ids=["up", "worker", "run", "module"],
)
def test_a_worker_says_in_one_sentence_that_it_needs_linux(
    elsewhere: dict[str, str], tmp_path: Path, command: list[str]
) -> None:
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n')
    found = ran(elsewhere, *command, cwd=tmp_path)
    assert found.returncode == 7, found.stderr
    assert "a worker needs Linux: this system has no os.eventfd, os.memfd_create, os.pidfd_open" in found.stderr
    assert "Traceback" not in found.stderr
