"""Keeps model code away from the secrets that a container mounts for the worker, with Landlock.

A container runs the worker and its children as one user, so file modes cannot keep a child from reading the worker's password.
Landlock, a part of the Linux kernel, lets a process give up rights for itself and for everything that it starts, without being
root. This is no sandbox: the child keeps every other right. A child that gave up rights this way cannot read the memory and the
environment of its supervisor either (https://docs.kernel.org/userspace-api/landlock.html).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

# Where container engines mount secrets; Kubernetes' /var/run/secrets is the same folder.
SECRETS = Path("/run/secrets")

# Numbers of the kernel's interface, the same on every architecture (linux/landlock.h, asm-generic/unistd.h).
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE = 1 << 2
# Every ruleset forbids moving files between folders unless it names this right, which version 1 lacks.
_MOVE = 1 << 13
_WITH_MOVE = 2
_SET_NO_NEW_PRIVILEGES = 38


def hide(folder: Path = SECRETS) -> bool:
    """Make the files below `folder` unreadable for this process and all that it starts; call it before any other thread begins.

    Whether it is so: False on a kernel without Landlock. A file that is later made directly in a parent of `folder` becomes
    unreadable too; in a container these parents are read-only.
    """
    kernel = _Kernel()
    if not folder.is_dir():
        return True
    if kernel.call(_CREATE_RULESET, None, 0, _ASK_VERSION) < _WITH_MOVE:
        return False
    rights = struct.pack("=Q", _READ_FILE | _MOVE)
    ruleset = kernel.call(_CREATE_RULESET, rights, len(rights), 0)
    if ruleset < 0:
        return False
    with closing(os.fdopen(ruleset)):
        return all(kernel.allow(ruleset, path) for path in _beside(folder.resolve())) and kernel.restrict(ruleset)


def _beside(folder: Path) -> Iterator[Path]:
    """Everything but `folder`: the entries of each of its parents that do not lead to it. A link counts where it points to."""
    for path in (folder, *folder.parents[:-1]):
        yield from (entry for entry in path.parent.iterdir() if entry != path and not entry.is_symlink())


class _Kernel:
    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)

    def call(self, number: int, *arguments: bytes | int | None) -> int:
        words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
        return int(self._libc.syscall(ctypes.c_long(number), *words))

    def allow(self, ruleset: int, path: Path) -> bool:
        """Give `path` and all below it back to the process; a path that is gone or closed to it needs no right."""
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return True
        try:
            rights = _READ_FILE | _MOVE if path.is_dir() else _READ_FILE
            return self.call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0) == 0
        finally:
            os.close(fd)

    def restrict(self, ruleset: int) -> bool:
        self._libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return self.call(_RESTRICT_SELF, ruleset, 0) == 0
