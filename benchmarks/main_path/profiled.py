"""Counts the calls of a gateway's event loop: Python's functions and built-in ones, as cProfile counts them.

`install` writes this file as `sitecustomize.py` into a folder. A gateway that has the folder in PYTHONPATH writes `PID.gateway`
there, and counts between two signals SIGUSR1: from the second on `PID-N.calls` holds the number, N counted from 0.
"""

from __future__ import annotations

import cProfile
import os
import signal
import sys
from pathlib import Path
from types import FrameType

MODULE = "penstock.gateway"


class CallCounter:
    """A profile sees the thread that enables it, and a signal's handler runs in the main thread: that of the event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._profile: cProfile.Profile | None = None
        self._done = 0

    def toggle(self, _: int, __: FrameType | None) -> None:
        if self._profile is None:
            self._profile = cProfile.Profile()
            (self._folder / f"{os.getpid()}-{self._done}.begun").touch()
            self._profile.enable()
            return
        self._profile.disable()
        calls = sum(entry.callcount for entry in self._profile.getstats())
        self._profile = None
        draft = self._folder / f"{os.getpid()}-{self._done}.draft"
        draft.write_text(str(calls))
        draft.rename(draft.with_suffix(".calls"))
        self._done += 1


def install(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(Path(__file__).read_text("utf-8"))


if __name__ == "sitecustomize" and MODULE in sys.orig_argv:
    here = Path(__file__).parent
    signal.signal(signal.SIGUSR1, CallCounter(here).toggle)
    (here / f"{os.getpid()}.gateway").touch()
