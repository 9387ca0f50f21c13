"""The `penstock` command in a process of its own, forked from one that has imported what commands import.

A command spends a second or more on imports, and tests call commands some hundred times. Signals, exit codes, output and the
folder are those of a real process. Only who tests the start itself runs `python -m penstock.cli.main`.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

# One server for the whole session; it forks at each call, and ends with the process of the tests.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "penstock.cli.main",
        "penstock.cli.runs.run",
        "penstock.cli.runs.drive",
        "penstock.cli.jobs.jobs",
        "penstock.cli.jobs.call",
        "penstock.cli.models.models",
        "penstock.cli.models.workers",
        "penstock.client.sync",
        "penstock.client.runs",
        "httpx2._transports.default",
        "penstock.runs.publishing",
        "penstock.workers.devices",
        "rich.progress",
        "rich.table",
    ]
)


def run_command(
    arguments: Sequence[str], *, folder: Path, env: Mapping[str, str], stdin: str | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns for `penstock ARGUMENTS` in this folder, with this environment alone."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write((stdin or "").encode())
        given.seek(0)
        code = _exit_code(list(arguments), folder, dict(env), (given, out, err), timeout_s)
        return subprocess.CompletedProcess(["penstock", *arguments], code, _text(out), _text(err))


def _exit_code(
    arguments: list[str], folder: Path, env: dict[str, str], files: tuple[BinaryIO, BinaryIO, BinaryIO], timeout_s: float
) -> int:
    # The files have no names: the other process opens them through this one's table.
    paths = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in files]
    process = _FORKS.Process(target=_run, args=(arguments, str(folder), env, paths))
    process.start()
    process.join(timeout_s)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise subprocess.TimeoutExpired(["penstock", *arguments], timeout_s)
    return process.exitcode


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode()


def _run(arguments: list[str], folder: str, env: dict[str, str], paths: list[str]) -> None:
    for number, path in enumerate(paths):
        opened = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = ["penstock", *arguments]
    from penstock.cli import lazy, main

    lazy.STARTED_AT = time.monotonic()
    main.main()
