"""The terminals of a page: one shell for its commands, and one for each command that stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROWS, COLUMNS = 50, 120
COMMAND_WITHIN_S = 120.0
READY_WITHIN_S = 60.0
END_WITHIN_S = 20.0
_END = "\x1e"
# Commands that stay, and the output that says that they work.
_STAYS = {
    r"penstock (up|torchserve(?!.* --write))\b": r" is ready in ",
    r"penstock flower\b": r"Visit me at",
    r"python -m penstock\.gateway\b": r"gateway_listening",
    r"python -m penstock\.workers\b|celery\b.* worker\b": r" ready\.",
    r"uvicorn\b|fastapi (run|dev)\b": r"Application startup complete",
    r"python -m http\.server\b": r"Serving HTTP",
}
_ASSIGNMENTS = r"(?:[A-Z_][\w]*=\S*\s+)*"


class TerminalError(Exception):
    """A command that did not get where it should: what it was, and what it printed."""


def ready_word(command: str) -> str | None:
    """Return the pattern by which a command that stays says that it is ready; None if the command ends by itself."""
    if re.search(r"(^|\s)(-h|--help)\b", command):
        return None
    return next((word for start, word in _STAYS.items() if re.match(_ASSIGNMENTS + f"(?:{start})", command.strip())), None)


def _open_pty() -> tuple[int, int]:
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    return reader, writer


class _Screen:
    """What was printed on a terminal."""

    def __init__(self, reader: int) -> None:
        self._reader = reader
        self._printed = b""

    @property
    def text(self) -> str:
        return self._printed.decode(errors="replace").replace("\r\n", "\n")

    def read(self, within_s: float) -> bool:
        """Read what comes within this time; False if nothing came, or nothing more can come."""
        readable, _, _ = select.select([self._reader], [], [], max(within_s, 0.0))
        if not readable:
            return False
        # EIO: nobody has the other end open any more.
        with contextlib.suppress(OSError):
            read = os.read(self._reader, 65536)
            self._printed += read
            return bool(read)
        return False

    def clear(self) -> None:
        self._printed = b""

    def close(self) -> None:
        os.close(self._reader)


class Shell:
    """One bash, into which the commands of a page are typed one after another."""

    def __init__(self, folder: Path, env: Mapping[str, str], scratch: Path) -> None:
        self._scratch = scratch
        reader, writer = _open_pty()
        self._screen = _Screen(reader)
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=writer,
            stderr=writer,
            cwd=folder,
            env=dict(env),
            start_new_session=True,
        )
        os.close(writer)
        self.env, self.cwd = dict(env), folder

    def run(self, command: str, within_s: float = COMMAND_WITHIN_S) -> tuple[int, str]:
        """Run a command; return its exit status and what it printed on both streams.

        Raises TerminalError if it takes too long, or ends the shell.
        """
        script, state = self._scratch / "command.sh", self._scratch / "state"
        script.write_text(command + "\n")
        self._screen.clear()
        typed = f"source {script} < /dev/null; _s=$?; env -0 > {state}; printf '{_END}%s{_END}' $_s\n"
        assert self._process.stdin is not None
        self._process.stdin.write(typed.encode())
        self._process.stdin.flush()
        until = time.monotonic() + within_s
        while self._screen.text.count(_END) < 2:
            if not self._screen.read(until - time.monotonic()):
                raise TerminalError(f"it did not end within {within_s:.0f} s, or it ended the shell:\n{self._screen.text}")
        printed, status, _ = self._screen.text.split(_END, 2)
        self.env = dict(entry.split("=", 1) for entry in state.read_text(errors="replace").split("\0") if "=" in entry)
        self.cwd = Path(self.env["PWD"])
        return int(status), printed

    def close(self) -> None:
        end_group(self._process, signal.SIGKILL)
        self._screen.close()


@dataclass
class Stay:
    """A command that stays, in a terminal of its own."""

    process: subprocess.Popen[bytes]
    screen: _Screen

    @classmethod
    def start(cls, command: str, folder: Path, env: Mapping[str, str]) -> Stay:
        reader, writer = _open_pty()
        text = command.strip().removesuffix("&").strip()
        process = subprocess.Popen(
            ["bash", "-c", text],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            cwd=folder,
            env=dict(env),
            start_new_session=True,
        )
        os.close(writer)
        return cls(process, _Screen(reader))

    def wait_until(self, word: str) -> None:
        """Raises TerminalError if the command ends before, or takes too long."""
        until = time.monotonic() + READY_WITHIN_S
        while not re.search(word, self.screen.text):
            if not self.screen.read(min(1.0, until - time.monotonic())) and (
                self.process.poll() is not None or time.monotonic() > until
            ):
                raise TerminalError(f"it stays, but it never printed '{word.strip()}':\n{self.screen.text}")

    def interrupt(self) -> str:
        """End it as Ctrl-C does; return what it printed from then on. Raises TerminalError if it does not end."""
        while self.screen.read(0.0):
            pass
        before = len(self.screen.text)
        end_group(self.process, signal.SIGINT, within_s=60.0)
        while self.screen.read(0.0):
            pass
        if self.process.poll() is None:
            raise TerminalError(f"it did not end after Ctrl-C:\n{self.screen.text}")
        return self.screen.text[before:]

    def close(self) -> None:
        end_group(self.process, signal.SIGINT, screen=self.screen)
        end_group(self.process, signal.SIGKILL)
        self.screen.close()


def end_group(
    process: subprocess.Popen[bytes], sig: signal.Signals, within_s: float = END_WITHIN_S, screen: _Screen | None = None
) -> None:
    """Signal the process and all that it started in its group, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, sig)
    until = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < until:
        # A terminal that nobody reads fills up, and its process waits for ever.
        if screen is None or not screen.read(0.02):
            time.sleep(0.02)
