"""Ends what a child started and left behind: the processes of its group, and those that left the group.

The kernel ends a child with its supervisor, but no process with the child. A program that a handler started would keep memory,
ports and the GPU while the next child loads the same model. Where the supervisor itself is killed, its watcher ends what is
left, and where that one was killed too, the next worker that starts on the machine.

The watcher is this file, run as a program: it imports nothing of ours, so it is small and starts at once.
"""

# D58: docs/design/workers-and-devices.md
from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from functools import partial

# Every process that a child starts inherits the variable, and with it the child's random mark. No other process has it. The
# mark begins with the supervisor's pid and the moment of its start, in ticks since the machine's.
VARIABLE = "MODEL_PROCESS_ID"
_ASSIGNED = f"{VARIABLE}=".encode()
# Of the values behind a process's name in /proc: its state, group, session, and when it started.
_STATE, _GROUP, _SESSION, _STARTED = 0, 2, 3, 19
# A process may start another while it is looked for.
_ROUNDS = 8
# A watcher looks at most this often, and goes once it finds nothing. Before the first look the supervisor ends for good.
_LOOKS, _PAUSE_S = 20, 0.3


class Watcher:
    """What ends this process's children and all that they started, should this process be killed.

    Its process belongs to no one and has a session of its own, so that what ends this process or its group leaves it alone.
    """

    def __init__(self) -> None:
        self._notes: int | None = None

    def start(self) -> None:
        # Imported here, because the watcher itself does without.
        import subprocess

        notes, self._notes = os.pipe()
        # If the watcher does not read, nobody may wait for it.
        os.set_blocking(self._notes, False)
        argv = [sys.executable, "-I", "-S", __file__]
        nowhere = subprocess.DEVNULL
        subprocess.run(argv, stdin=notes, stdout=nowhere, stderr=nowhere, cwd="/", start_new_session=True, check=True)
        os.close(notes)

    def note(self, child: int) -> None:
        """A child has started; `-child`: it has ended with all of its family."""
        if self._notes is not None:
            # Without its watcher, this process's family is ended by the next worker.
            with suppress(OSError):
                os.write(self._notes, b"%d\n" % child)


WATCHER = Watcher()


def new_mark() -> str:
    """For a child of this process."""
    return f"{os.getpid()}.{_started(os.getpid())}.{os.urandom(16).hex()}"


def end_orphans() -> int:
    """End what is left of the children of supervisors that have ended; how many processes that were.

    A process of another namespace of pids is left alone: there its supervisor's pid names a process that is not seen here.
    """
    marked = {pid: mark for pid in _pids() if (mark := _mark_of(pid)) and _is_of_our_pids(pid)}
    orphans = {pid: mark for pid, mark in marked.items() if not _has_supervisor(mark)}
    for pid, mark in orphans.items():
        _end_if(pid, partial(_has_mark, pid, mark))
    return len(orphans)


def _has_supervisor(mark: str) -> bool:
    """Whether it lives, or the mark does not say which process it is."""
    pid, _, rest = mark.partition(".")
    return not (pid.isdigit() and rest) or _started(int(pid)) == rest.partition(".")[0]


def _started(pid: int) -> str:
    """When a process started; empty if it has ended."""
    return (_values(pid) or [""] * (_STARTED + 1))[_STARTED]


def _values(pid: int) -> list[str] | None:
    """What /proc says of a process behind its name; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            values = stat.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if values[_STATE] in "ZX" else values


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
            _end_if(pid, partial(_has_mark, pid, mark))
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


def _end_if(pid: int, is_meant: Callable[[], bool]) -> None:
    """The pid may be another process's by now; the descriptor stays with the one that it names."""
    with suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if is_meant():
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def _end_sessions(leaders: Set[int]) -> int:
    """End the processes of children that have ended, also those without a mark: a program may start with another environment.

    Where a leader's pid is another process's, the session is not ours: all of ours have left it.
    """
    ours = {str(pid) for pid in leaders if not _started(pid) or _mark_of(pid)}

    left = [pid for pid in _pids() if _is_in(pid, ours)]
    for pid in left:
        _end_if(pid, partial(_is_in, pid, ours))
    return len(left)


def _is_in(pid: int, sessions: Set[str]) -> bool:
    values = _values(pid)
    return values is not None and not sessions.isdisjoint((values[_GROUP], values[_SESSION]))


def _watch() -> None:
    """The watcher's program. Its input ends with its supervisor."""
    if os.fork():
        os._exit(0)
    leaders: set[int] = set()
    for note in sys.stdin:
        child = int(note)
        leaders = leaders | {child} if child > 0 else leaders - {-child}
    for _ in range(_LOOKS):
        time.sleep(_PAUSE_S)
        if not end_orphans() + _end_sessions(leaders):
            return


if __name__ == "__main__":
    _watch()
