"""What runs on this machine: the note that a `penstock up` keeps in its state folder, and which folder that is.

The note is believed only while its writer holds a lock on it: the kernel releases the lock however a process ends. Commands and
clients find the gateway here, so this module imports next to nothing.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

NOTE = "up.json"
# In the state folder of the folder where `penstock up` was started, if the settings that it was given lie elsewhere.
NOTE_OF_ELSEWHERE = "up-elsewhere.json"
_STATE_VARIABLE, _CONFIG_VARIABLE = "PENSTOCK_STORE__STATE_DIR", "PENSTOCK_CONFIG"


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A running `penstock up`: its process, its gateway's address, its store's address."""

    pid: int
    url: str
    redis_url: str


def running_stack(state_dir: Path) -> RunningStack | None:
    """What runs in `state_dir`, or None."""
    return _noted(state_dir / NOTE)


def _noted(file: Path) -> RunningStack | None:
    """The stack that a note names; None if no process locks the note, because its process has ended."""
    try:
        with file.open("r+", encoding="utf-8") as note:
            return read_note(note.read()) if _is_locked(note) else None
    except OSError:
        return None


def running_gateway(folder: Path, env: Mapping[str, str] = os.environ) -> str | None:
    """The address of the gateway of the `penstock up` that was started in `folder`, or has its state there, if it runs."""
    state_dir = state_dir_of(folder, env)
    stack = running_stack(state_dir) or _noted(state_dir / NOTE_OF_ELSEWHERE)
    # A `penstock run` with a store of its own writes the note too, and has no gateway.
    return stack.url or None if stack else None


def state_dir_of(folder: Path, env: Mapping[str, str] = os.environ) -> Path:
    """The state folder of commands that are started in `folder` without --state-dir and --config."""
    if env.get(_STATE_VARIABLE):
        return folder / Path(env[_STATE_VARIABLE]).expanduser()
    config = folder / env.get(_CONFIG_VARIABLE, "penstock.toml")
    return config.parent / (_declared(config) or ".penstock")


def read_note(text: str) -> RunningStack | None:
    try:
        return RunningStack(**json.loads(text))
    except (ValueError, TypeError):
        return None


def _declared(config: Path) -> str:
    """The state folder that a settings file names; empty if there is none, or the file cannot be read."""
    try:
        state_dir = tomllib.loads(config.read_text("utf-8")).get("store", {}).get("state_dir", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return os.path.expanduser(state_dir) if isinstance(state_dir, str) else ""


def _is_locked(note: IO[str]) -> bool:
    # Imported here: Windows, where only clients run, has no such module, and no note either.
    import fcntl

    try:
        fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
