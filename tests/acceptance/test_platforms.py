"""docs/reference/platforms.md: what works without the system calls that only Linux has. Tests hide these calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_cli import COMMAND, SQUARE, clean_environment
from tests.stack import Stack

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


# Several commands in one process, because its start and imports take longer than the commands.
COMMANDS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from penstock.cli.main import main

found = []
for words in json.load(sys.stdin):
    sys.argv, texts = ["penstock", *words], [io.StringIO(), io.StringIO()]
    with redirect_stdout(texts[0]), redirect_stderr(texts[1]):
        try:
            main()
        except SystemExit as end:
            code = end.code
    found.append([code, *(text.getvalue() for text in texts)])
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def served(elsewhere: dict[str, str], redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A gateway elsewhere; its worker is on Linux."""
    folder = tmp_path_factory.mktemp("served")
    models = {"square": {"source": str(SQUARE)}}
    env = {"PYTHONPATH": elsewhere["PYTHONPATH"], "PENSTOCK_DIE_WITH_PARENT": ""}
    with Stack(folder, models, store=redis_url) as stack:
        stack.start_worker()
        stack.start_gateway(env=env)
        stack.await_ready()
        yield stack


def ran(
    environment: dict[str, str], *arguments: str, cwd: Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, env=environment | variables, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def called(
    environment: dict[str, str], commands: list[list[str]], *, cwd: Path, **variables: str
) -> list[tuple[int, str, str]]:
    """Return exit code, stdout and stderr of each command."""
    done = ran(environment, sys.executable, "-c", COMMANDS, cwd=cwd, stdin=json.dumps(commands), **variables)
    assert done.returncode == 0, done.stderr
    return [(code, stdout, stderr) for code, stdout, stderr in json.loads(done.stdout)]


SHOWN = {
    ("call", "square", '{"x": 4}'): '{"y": 16}',
    ("jobs", "list"): "square",
    ("models",): "square",
    ("workers",): "square",
    ("config",): "gateway.port",
    ("doctor", "--devices"): "cores",
}


def test_commands_work_against_a_gateway_elsewhere(elsewhere: dict[str, str], served: Stack, tmp_path: Path) -> None:
    found = called(elsewhere, [list(words) for words in SHOWN], cwd=tmp_path, PENSTOCK_URL=served.url)
    for (words, shown), (code, stdout, stderr) in zip(SHOWN.items(), found, strict=True):
        assert code == 0, (words, stdout, stderr)
        assert shown in stdout, words


def test_both_clients_work(elsewhere: dict[str, str], served: Stack, tmp_path: Path) -> None:
    found = ran(elsewhere, sys.executable, "-c", CLIENTS, served.url, cwd=tmp_path)
    assert found.stdout == "{'y': 16} {'y': 9}\n", found.stderr


def test_a_run_is_driven_from_there_while_its_workers_are_on_linux(
    elsewhere: dict[str, str], served: Stack, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"x": 1}\n{"x": 2}\n')
    output = tmp_path / "out.jsonl"
    command = [*COMMAND, "run", "square", str(rows), "-o", str(output), "--state-dir", str(served.folder / "state")]
    found = ran(elsewhere, *command, cwd=tmp_path, PENSTOCK_REDIS_URL=served.redis_url)
    assert found.returncode == 0, found.stdout + found.stderr
    outputs = [json.loads(line)["output"] for line in output.read_text().splitlines()]
    assert outputs == [{"y": 1}, {"y": 4}]


def test_a_gateway_runs(served: Stack) -> None:
    assert served.http.get("/livez").status_code == 200


def test_a_worker_says_in_one_sentence_that_it_needs_linux(elsewhere: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"x": 1}\n')
    commands = [
        ["up", str(SQUARE)],
        ["worker", str(SQUARE), "--redis-url", "redis://127.0.0.1:1"],
        ["run", "square", "rows.jsonl", "-o", "out.jsonl", "--models", str(SQUARE)],
    ]
    found = called(elsewhere, commands, cwd=tmp_path)
    module = ran(elsewhere, sys.executable, "-m", "penstock.workers", cwd=tmp_path)
    for code, _, stderr in [*found, (module.returncode, "", module.stderr)]:
        assert code == 7, stderr
        assert "a worker needs Linux: this system has no os.eventfd, os.memfd_create, os.pidfd_open" in stderr
        assert "Traceback" not in stderr
