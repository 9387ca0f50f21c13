"""Ends what a child started and left behind: the processes of its group, and those that left the group.

The kernel ends a child with its supervisor, but no process with the child. A program that a handler started would keep memory,
ports and the GPU while the next child loads the same model. Where the supervisor itself is killed, the next worker that starts
on the machine ends what is left.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress

# Every process that a child starts inherits the variable, and with it the child's random mark. No other process has it. The
# mark begins with the supervisor's pid and the moment of its start, in ticks since the machine's.
VARIABLE = "MODEL_PROCESS_ID"
_ASSIGNED = f"{VARIABLE}=".encode()
# Of the values behind a process's name in /proc: its state, and when it started.
_STATE, _STARTED = 0, 19
# A process may start another while it is looked for.
_ROUNDS = 8


def new_mark() -> str:
    """For a child of this process."""
    return f"{os.getpid()}.{_started(os.getpid())}.{secrets.token_hex(16)}"


def end_orphans() -> int:
    """End what is left of the children of supervisors that have ended; how many processes that were.

    A process of another namespace of pids is left alone: there its supervisor's pid names a process that is not seen here.
    """
    marked = {pid: mark for pid in _pids() if (mark := _mark_of(pid)) and _is_of_our_pids(pid)}
    orphans = {pid: mark for pid, mark in marked.items() if not _has_supervisor(mark)}
    for pid, mark in orphans.items():
        _end(pid, mark)
    return len(orphans)


def _has_supervisor(mark: str) -> bool:
    """Whether it lives, or the mark does not say which process it is."""
    pid, _, rest = mark.partition(".")
    return not (pid.isdigit() and rest) or _started(int(pid)) == rest.partition(".")[0]


def _started(pid: int) -> str:
    """When a process started; empty if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            values = stat.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if values[_STATE] in "ZX" else values[_STARTED]


def _is_of_our_pids(pid: int) -> bool:
    try:
        return os.path.samefile(f"/proc/{pid}/ns/pid", "/proc/self/ns/pid")
    except OSError:
        return False


def end_family(leader: int, mark: str) -> None:
    """End what the child left. `leader` is its pid: the child has ended, and no thread has waited for it yet.

    Until then the pid names the child's group and no other. A process that left the group is known by the mark.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        pids = {pid for pid in _pids() if pid not in ended and _has_mark(pid, mark)}
        if not pids:
            return
        for pid in pids:
            _end(pid, mark)
        ended |= pids


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _has_mark(pid: int, mark: str) -> bool:
    return _mark_of(pid) == mark


def _mark_of(pid: int) -> str:
    """Empty without one."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ:
            marks = [entry for entry in environ.read().split(b"\0") if entry.startswith(_ASSIGNED)]
    except OSError:
        # It has ended, or is another user's.
        return ""
    return marks[0].removeprefix(_ASSIGNED).decode("ascii", "replace") if marks else ""


def _end(pid: int, mark: str) -> None:
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            # The pid may be another process's by now, and then has no mark; the descriptor stays with the one that it names.
            if _has_mark(pid, mark):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
