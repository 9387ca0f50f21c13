"""New files that survive a power cut."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def write_all(paths: Sequence[Path], contents: Sequence[bytes]) -> None:
    """Write every file, then sync every file: the first sync commits the file system's journal for all of them.

    The files get their final names at once. A reader knows a name only from a record, and the record is written after this
    function returns, so a half-written file is an orphan that is never read. This saves the rename, and a second journal
    commit.
    """
    with ExitStack() as opened:
        files = [opened.enter_context(_Fresh(path)) for path in paths]
        for file, data in zip(files, contents, strict=True):
            file.write(data)
        for file in files:
            file.sync()
        for file in files:
            file.keep()
    # POSIX guarantees the folder's entry of a new file only after this sync. On ext4 and XFS the file's own fsync has
    # committed the entry already, and this sync finds nothing to do.
    for folder in {path.parent for path in paths}:
        sync_folder(folder)


class _Fresh:
    """A new file under its final name; if that is taken, the file has another name until it is whole.

    A write that is repeated after a lost reply finds its name taken. A worker may be reading that file, which must always be
    whole.
    """

    def __init__(self, path: Path) -> None:
        self._path = self._target = path
        self._descriptor = -1
        self._kept = False

    def __enter__(self) -> _Fresh:
        try:
            self._open()
        except FileNotFoundError:
            _make_folder(self._path.parent)
            self._open()
        return self

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self._path, _CREATE, 0o600)
        except FileExistsError:
            self._path = self._target.with_name(f"{self._target.name}.{os.urandom(8).hex()}.new")
            self._descriptor = os.open(self._path, _CREATE, 0o600)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def keep(self) -> None:
        if self._path != self._target:
            self._path.replace(self._target)
        self._kept = True

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
        if not self._kept:
            # A half-written file must not stay on a full disk. Only our own file goes: an earlier whole one may be in use.
            self._path.unlink()


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
