"""The entry point of `penstock` in the process of the tests, where a process of the command's own is not the point: each of
them would import the client, and more, again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import structlog

from penstock.cli import main
from tests.acceptance.test_cli import clean_environment

EntryPoint = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def entry_point(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[EntryPoint]:
    for name in {*os.environ} - {*clean_environment()}:
        monkeypatch.delenv(name)
    before = structlog.get_config()

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(sys.argv, int(ended.value.code or 0), printed.out, printed.err)

    yield run
    # A command makes logs go to the stream of its time, which ends with the test.
    structlog.configure(**before)
