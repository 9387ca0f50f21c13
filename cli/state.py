"""The lock and the note of a `penstock up` in its state folder, and the readiness of its gateway."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from penstock.cli.exits import StartError
from penstock.running_stack import NOTE, NOTE_OF_ELSEWHERE, RunningStack, read_note, state_dir_of

_IGNORED = ".gitignore"


@dataclass(frozen=True, slots=True)
class Readiness:
    """`why`: what is still missing, if the gateway says so. `answers`: the gateway already serves requests."""

    ready: bool
    why: str = ""
    answers: bool = True


@contextmanager
def state_lock(state_dir: Path) -> Iterator[IO[str]]:
    """The open note of `state_dir`, locked. Raises `StartError` when another `penstock up` holds the lock.

    The kernel releases the lock when the process ends, so a crash never leaves a folder locked.
    """
    note = _open_note(state_dir, NOTE)
    with note:
        if not _try_lock(note):
            raise _already_running(state_dir, note.read())
        try:
            yield note
        finally:
            note.seek(0)
            note.truncate()


@contextmanager
def note_of_elsewhere(state_dir: Path, folder: Path) -> Iterator[IO[str] | None]:
    """The locked note for commands in `folder`, by which they find a stack with another state folder than their default.

    None if it is their default, if `folder` cannot be written, or if it has another stack's note: then name the gateway.
    """
    own = state_dir_of(folder)
    is_made = not own.exists()
    try:
        note = None if own.absolute() == state_dir.absolute() else _open_note(own, NOTE_OF_ELSEWHERE)
    except StartError:
        note = None
    if note is None:
        yield None
        return
    with note:
        is_ours = _try_lock(note)
        try:
            yield note if is_ours else None
        finally:
            if is_ours:
                _remove(own, is_made=is_made)


def _remove(own: Path, *, is_made: bool) -> None:
    (own / NOTE_OF_ELSEWHERE).unlink(missing_ok=True)
    if is_made:
        (own / _IGNORED).unlink(missing_ok=True)
        # Another command may have written there in the meantime.
        with suppress(OSError):
            own.rmdir()


def write_note(note: IO[str], stack: RunningStack) -> None:
    note.seek(0)
    note.truncate()
    json.dump(asdict(stack), note)
    note.flush()


def check_readiness(url: str, *, timeout_s: float = 2.0) -> Readiness:
    """One GET of /readyz with the standard library, so that `penstock up` loads no HTTP client.

    A gateway that does not listen yet is not ready; that raises nothing.
    """
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "127.0.0.1", parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        return Readiness(response.status == 200, reason_of(response.read()))
    except (OSError, HTTPException):
        return Readiness(False, "the gateway does not listen yet", answers=False)
    finally:
        connection.close()


def reason_of(content: bytes) -> str:
    """The reason in a readiness body, or "" when there is none."""
    try:
        body = json.loads(content)
    except ValueError:
        return ""
    if not isinstance(body, dict):
        return ""
    errors = body.get("errors")
    parts = (
        [": ".join(map(str, part.values())) for part in errors if isinstance(part, dict)] if isinstance(errors, list) else []
    )
    return "; ".join(parts) or str(body.get("detail") or "")


def _open_note(state_dir: Path, name: str) -> IO[str]:
    try:
        _make_folder(state_dir)
        # The note holds the store's address, which may hold a password.
        descriptor = os.open(state_dir / name, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as fault:
        raise StartError(
            f"the state folder {state_dir} cannot be used: {fault.strerror}", hint="choose another one with --state-dir"
        ) from fault
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def _make_folder(state_dir: Path) -> None:
    """A new folder excludes itself from Git, because it holds jobs and passwords."""
    if not state_dir.exists():
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        (state_dir / _IGNORED).write_text("*\n")


def _try_lock(note: IO[str]) -> bool:
    """Tries three times, because a command that only reads holds the lock for an instant."""
    for _ in range(3):
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def _already_running(state_dir: Path, text: str) -> StartError:
    stack = read_note(text)
    who = f" (process {stack.pid}, {stack.url})" if stack else ""
    return StartError(
        f"another `penstock up` runs on {state_dir}{who}",
        hint="use that one, stop it, or start a second one with its own --state-dir and --port",
    )
