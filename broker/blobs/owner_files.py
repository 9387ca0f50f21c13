"""Which files an owner has: an empty entry per file, in a folder per owner, so that a list reads no other owner's records."""

# D146: docs/design/runs.md
from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from penstock.broker.blobs.durable_files import sync_folder

FOLDER = "owners"
_WHOLE = "whole"


class OwnerFiles:
    """The entries below one folder of files. Every method blocks. An entry is made after its file's record and goes before it.

    An entry whose file is gone, as a crash may leave one, is dropped by who meets it; a missing one is made by the next sweep.
    """

    def __init__(self, files: Path) -> None:
        self._folder = files / FOLDER
        self._is_whole = False

    def is_whole(self) -> bool:
        """Whether every file has its entry: not so for files that were stored before there were entries."""
        self._is_whole = self._is_whole or (self._folder / _WHOLE).exists()
        return self._is_whole

    def note_whole(self) -> None:
        if not self.is_whole():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (self._folder / _WHOLE).touch()
            sync_folder(self._folder)

    def add(self, owner: str, file_id: str, purpose: str) -> bool:
        """Make the entry; False if it exists already. It is durable after the next `sync`."""
        entry = self._entry(owner, file_id, purpose)
        if entry.exists():
            return False
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        entry.touch()
        return True

    def sync(self, owner: str) -> None:
        sync_folder(self._of(owner))

    def discard(self, owner: str, file_id: str, purpose: str) -> None:
        self._entry(owner, file_id, purpose).unlink(missing_ok=True)

    def drop(self, owner: str, file_id: str) -> None:
        """Discard the entry of a file that is gone, whatever its purpose was."""
        for entry in self._of(owner).glob(f"{file_id}.*"):
            entry.unlink(missing_ok=True)

    def ids(self, owner: str | None, purpose: str | None = None) -> list[str]:
        """The ids of the owner's files, or of all owners' (None), the oldest first: an id begins with its time."""
        mark = None if purpose is None else _short(purpose)
        names = (name.split(".") for folder in self._folders(owner) for name in _names(folder))
        return sorted(file_id for file_id, of in names if mark in (None, of))

    def _folders(self, owner: str | None) -> Iterator[Path]:
        yield from [self._of(owner)] if owner is not None else (each for each in self._folder.glob("*") if each.name != _WHOLE)

    def _entry(self, owner: str, file_id: str, purpose: str) -> Path:
        return self._of(owner) / f"{file_id}.{_short(purpose)}"

    def _of(self, owner: str) -> Path:
        return self._folder / _short(owner)


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []


def _short(text: str) -> str:
    """A name for any text, which may have letters that no file's name may have."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
