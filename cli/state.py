"""The note that a running `penstock up` leaves in its state folder, and the lock that lets only one run there."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from penstock.cli.exits import StartError

_NOTE = "up.json"


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A running `penstock up`: its process, its gateway's address, its store's address."""

    pid: int
    url: str
    redis_url: str


@contextmanager
def state_lock(state_dir: Path) -> Iterator[IO[str]]:
    """The open note of `state_dir`, locked. Raises `StartError` when another `penstock up` holds it.

    The kernel lets go of the lock however the process ends, so a folder is never left locked by a crash.
    """
    note = _opened(state_dir)
    with note:
        if not _taken(note):
            raise _already_running(state_dir, note.read())
        try:
            yield note
        finally:
            note.seek(0)
            note.truncate()


def write_note(note: IO[str], stack: RunningStack) -> None:
    note.seek(0)
    note.truncate()
    json.dump(asdict(stack), note)
    note.flush()


def running_stack(state_dir: Path) -> RunningStack | None:
    """What runs in `state_dir`, or None. A note whose lock is free is a leftover."""
    try:
        with (state_dir / _NOTE).open("r+", encoding="utf-8") as note:
            return _read(note.read()) if _locked(note) else None
    except OSError:
        return None


def _opened(state_dir: Path) -> IO[str]:
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # It holds the store's address, which may hold a password.
        descriptor = os.open(state_dir / _NOTE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as fault:
        raise StartError(
            f"the state folder {state_dir} cannot be used: {fault.strerror}", hint="choose another one with --state-dir"
        ) from fault
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def _taken(note: IO[str]) -> bool:
    """Tries three times: a command that only looks holds the lock for an instant."""
    for _ in range(3):
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def _locked(note: IO[str]) -> bool:
    try:
        fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _already_running(state_dir: Path, text: str) -> StartError:
    stack = _read(text)
    who = f" (process {stack.pid}, {stack.url})" if stack else ""
    return StartError(
        f"another `penstock up` runs on {state_dir}{who}",
        hint="use that one, stop it, or start a second one with its own --state-dir and --port",
    )


def _read(text: str) -> RunningStack | None:
    try:
        return RunningStack(**json.loads(text))
    except (ValueError, TypeError):
        return None
