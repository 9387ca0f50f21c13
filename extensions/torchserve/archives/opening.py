"""Archives as folders of this machine: each content is unpacked into the models' cache once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from penstock.errors import BadArchive, DiskFull, is_disk_full
from penstock.extensions.torchserve.archives.contents import read_archive
from penstock.extensions.torchserve.archives.kinds import archive_stem
from penstock.extensions.torchserve.archives.manifest import ArchiveManifest
from penstock.extensions.torchserve.archives.members import MemberCheck, MemberKind
from penstock.extensions.torchserve.archives.packed import PackedMember, packed_members
from penstock.model_cache.entries import Entries, Entry, Lock, entry_name
from penstock.model_cache.room import FULL_HINT, CacheRoom

# In an entry, beside its files: how large each was when it was unpacked.
_SIZES = "sizes.json"
CACHE_BYTES = 50 << 30
# The state of a file: when it was changed last, and its size.
FileState = tuple[int, int]
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class OpenedArchive:
    """An archive whose files lie in `folder`. `config` is model-config.yaml as a whole, empty if there is none.

    `digest`: the SHA-256 of the packed archive; empty for a folder, which is used in place. An unpacked archive stays in the
    cache while `lock` is held.
    """

    folder: Path
    manifest: ArchiveManifest
    config: dict[str, Any]
    digest: str = ""
    lock: Lock | None = field(default=None, compare=False)


def opened(path: Path, cache_dir: Path, *, handler: str = "", max_bytes: int = CACHE_BYTES) -> OpenedArchive:
    """Unpacks the archive at `path` below `cache_dir`, unless it is there. Safe to call from several processes at once.

    `handler` overrides that of the manifest; `max_bytes` is what the cache may hold. Raises `BadArchive` for an archive that is
    unsafe, damaged, or lacks what it names, and `DiskFull`.
    """
    path = path.absolute()
    if path.is_dir():
        return opened_folder(path, handler=handler)
    try:
        with path.open("rb") as file:
            state = _state(file)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            entry, lock = _unpacked(file, path, digest, Entries(cache_dir), max_bytes, state)
    except OSError as error:
        raise BadArchive(f"{path} cannot be read: {error.strerror or error}", hint="check the path and its rights") from error
    try:
        archive = opened_folder(_content(entry), handler=handler, stem=archive_stem(path))
    except BadArchive as error:
        lock.close()
        raise BadArchive(error.message.replace(str(_content(entry)), str(path)), hint=error.hint) from error
    return replace(archive, digest=digest, lock=lock)


def opened_folder(folder: Path, *, handler: str = "", stem: str = "") -> OpenedArchive:
    """An archive that is unpacked already. `stem`: its model's name if it has no manifest. Raises `BadArchive`."""
    try:
        contents = read_archive(folder, handler=handler, stem=stem)
    except OSError as error:
        # The manifest may contain a name that no file can have.
        raise BadArchive(f"{folder} cannot be read: {error.strerror or error}", hint="check what its manifest names") from error
    return OpenedArchive(folder, contents.manifest, contents.config)


def _unpacked(
    file: IO[bytes], path: Path, digest: str, entries: Entries, max_bytes: int, state: FileState
) -> tuple[Entry, Lock]:
    """The whole entry, under a lock that keeps it from being deleted. `state`: that of the file before its digest was read."""
    source = f"archive://{path.name}#sha256={digest}"
    name = entry_name(source)
    entry = entries.whole(name)
    if entry and not _is_intact(entry):
        # A handler may delete files of its folder. A new start gets all of them again, unless another process uses the folder.
        with entries.exclusive(name) as is_ours:
            if is_ours:
                entries.delete(entry)
    return entries.held(name, lambda: _fill(file, path, name, source, entries, max_bytes, state))


def _fill(file: IO[bytes], path: Path, name: str, source: str, entries: Entries, max_bytes: int, state: FileState) -> None:
    """Unpacks into a partial entry, which becomes whole by a rename. Nothing is written of an archive that is refused."""
    entries.drop_partial(name)
    # The first pass checks every member, and tells how much room is needed.
    check, members = _members(file, path)
    for _ in members:
        pass
    try:
        entry = CacheRoom(entries, max_bytes).begin(name, source, "", check.size_bytes)
        sizes = _unpack(file, path, entry.files)
        if _state(file) != state:
            raise BadArchive(f"{path} was changed while it was unpacked", hint="replace archives by a rename, which is at once")
        _write(entry.folder / _SIZES, iter([json.dumps(sizes).encode()]))
        entries.complete(entry)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise DiskFull(f"{path}: the disk of the models' cache is full", hint=FULL_HINT) from error
    finally:
        # After success there is no partial entry.
        entries.drop_partial(name)


def _state(file: IO[bytes]) -> FileState:
    status = os.fstat(file.fileno())
    return status.st_mtime_ns, status.st_size


def _is_intact(entry: Entry) -> bool:
    try:
        sizes = json.loads((entry.folder / _SIZES).read_bytes())
        return all((entry.files / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _unpack(file: IO[bytes], path: Path, target: Path) -> dict[str, int]:
    """The size of each file that was written, by its path."""
    sizes: dict[str, int] = {}
    for member, kind, chunks in _members(file, path)[1]:
        path = target / member
        if kind is MemberKind.FOLDER:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        sizes[member] = _write(path, chunks)
    return sizes


def _members(file: IO[bytes], path: Path) -> tuple[MemberCheck, Iterator[PackedMember]]:
    check = MemberCheck(str(path), os.fstat(file.fileno()).st_size)
    file.seek(0)
    return check, packed_members(file, check)


def _write(path: Path, chunks: Iterator[bytes]) -> int:
    """On the disk when this returns: the entry's rename must not come before its bytes."""
    # The folder is new and holds only what came from here, so nothing can lie in the file's place.
    with open(os.open(path, _NEW_FILE, 0o644), "wb") as file:
        size_bytes = sum(file.write(chunk) for chunk in chunks)
        file.flush()
        os.fsync(file.fileno())
    return size_bytes


def _content(entry: Entry) -> Path:
    """The folder of the model: of a tar.gz the one folder that everything lies in."""
    top = list(entry.files.iterdir())
    return top[0] if len(top) == 1 and top[0].is_dir() and not top[0].name.endswith("-INF") else entry.files
