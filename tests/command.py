"""The `penstock` command in the process of the tests: the same entry point, without an interpreter's start and imports.

Only commands that end by themselves run this way; what they start are real processes. `tests/acceptance/warm_command.py` runs
a command in a process of its own, for tests in which signals or several commands at once matter, and `COMMAND` in
`tests/acceptance/test_cli.py` starts one as users do.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import structlog

from penstock.cli.main import main


def called_here(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str], stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Call the command; `env` is its whole environment."""
    stdout, stderr = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    words = ["penstock", *arguments]
    before = structlog.get_config()
    with (
        mock.patch.dict(os.environ, env, clear=True),
        mock.patch.object(sys, "argv", words),
        # `gateway`, `worker` and `runner` replace their process once they have found nothing to refuse.
        mock.patch.object(os, "execve", side_effect=AssertionError("the command refused nothing")),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8")),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
        chdir(cwd or Path.cwd()),
    ):
        code = _exit_code()
    # The command made logs go to the stream of its time, which ends with it.
    structlog.configure(**before)
    return subprocess.CompletedProcess(words, code, *(text.buffer.getvalue().decode() for text in (stdout, stderr)))


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    return 0
