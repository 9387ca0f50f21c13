"""The `penstock` command in a process of its own, which `tests/warm_process.py` starts.

A command spends a second or more on imports, and tests call commands some hundred times. Only who tests the start itself runs
`python -m penstock`.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.warm_process import start


def run_command(
    arguments: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    stdin: str | None = None,
    timeout_s: float = 60.0,
    lent: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` returns for `penstock ARGUMENTS` in this folder, with this environment alone.

    `lent`: the modules whose processes `penstock up` forks, too.
    """
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write((stdin or "").encode())
        given.seek(0)
        process = start("penstock.cli.main", *arguments, env=env, cwd=folder, stdin=given, stdout=out, stderr=err, lent=lent)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(["penstock", *arguments], code, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
