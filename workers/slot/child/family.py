"""What a child started and left behind: processes of its group, and those that left the group, ended when the child has.

The kernel ends a child with its supervisor, and ends nobody with the child. A program that a handler started would keep memory,
ports and the GPU while the next child loads the same model.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress

# Every process that a child starts inherits the variable, and with it the child's random mark. No other process has it.
VARIABLE = "MODEL_PROCESS_ID"
# A process may start another while it is looked for.
_ROUNDS = 8


def new_mark() -> str:
    return secrets.token_hex(16)


def end_family(leader: int, mark: str) -> None:
    """End what the child left. `leader` is its pid: the child has ended, and nobody has waited for it yet.

    Until then the pid names the child's group and no other. A process that left the group is known by the mark.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        found = {pid for pid in _pids() if pid not in ended and _has_mark(pid, mark)}
        if not found:
            return
        for pid in found:
            _end(pid, mark)
        ended |= found


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _has_mark(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            return f"{VARIABLE}={mark}\0".encode() in environ.read()
    except OSError:
        # It has ended, or is another user's.
        return False


def _end(pid: int, mark: str) -> None:
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            # The pid may be another process's by now, and then has no mark; the descriptor stays with the one that it names.
            if _has_mark(pid, mark):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
