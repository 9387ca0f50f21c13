"""Files by path or fsspec URL: find, describe, open, upload. The libraries of the extra `runs` are imported when needed."""

from __future__ import annotations

import glob
import hashlib
import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from penstock.distribution import install_hint
from penstock.errors import ConfigError, NotFound

_WILD = frozenset("*?[")
_LOCAL = "file://"
_ENDS_BYTES = 64 * 1024
_COPY_BYTES = 1 << 20
# The keys under which fsspec's file systems report an etag or a modification time, the most reliable first.
_CHANGED = ("ETag", "etag", "e_tag", "LastModified", "last_modified", "mtime", "created")
# The schemes for which obstore needs no other library; it has an fsspec interface.
_OBSTORE = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "adl"})


@dataclass(frozen=True, slots=True)
class Stat:
    """`changed`: for a local file the times of its content and of its inode in ns, for an object its etag or modification time.

    A program can set the time of the content back, as `rsync -t` does; the time of the inode is the kernel's.
    """

    size_bytes: int
    changed: str


def is_url(name: str) -> bool:
    return "://" in name and not name.startswith(_LOCAL)


def local_path(name: str) -> str:
    return name.removeprefix(_LOCAL)


def is_pattern(name: str) -> bool:
    return not _WILD.isdisjoint(name)


def expand(name: str) -> tuple[list[str], bool]:
    """The files that a path, folder, glob or URL names, sorted, and whether it can name several.

    A folder stands for all files below it except hidden ones. Raises `NotFound` if there is no file.
    """
    names, many = _expand_url(name) if is_url(name) else _expand_local(local_path(name))
    if not names:
        raise NotFound(f"no input: {name} names no file", hint="check the path; a glob with ** also searches subfolders")
    return sorted(names), many


def stat(name: str) -> Stat:
    """Raises `NotFound` if there is no such file."""
    if is_url(name):
        return _stat_url(name)
    try:
        status = os.stat(local_path(name))
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {name}") from error
    return Stat(status.st_size, f"{status.st_mtime_ns}.{status.st_ctime_ns}")


def exists(name: str) -> bool:
    if is_url(name):
        system, path = filesystem(name)
        return bool(system.exists(path))
    return os.path.exists(local_path(name))


def open_read(name: str) -> BinaryIO:
    """A seekable file. Raises `NotFound` if there is no such file."""
    try:
        if is_url(name):
            system, path = filesystem(name)
            return cast("BinaryIO", system.open(path, "rb"))
        return open(local_path(name), "rb")
    except FileNotFoundError as error:
        raise NotFound(f"no such file: {name}") from error


def identity(name: str) -> dict[str, Any]:
    """Name, size, times of change, and a digest of the first and last 64 KiB: equal for an unchanged file."""
    facts = stat(name)
    digest = hashlib.sha256()
    with open_read(name) as file:
        digest.update(file.read(_ENDS_BYTES))
        if facts.size_bytes > _ENDS_BYTES:
            file.seek(max(_ENDS_BYTES, facts.size_bytes - _ENDS_BYTES))
            digest.update(file.read(_ENDS_BYTES))
    return {"name": name, "bytes": facts.size_bytes, "changed": facts.changed, "ends": digest.hexdigest()}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def upload(path: Path, url: str) -> None:
    """Copy a local file to a URL. Object stores show an object only when its upload is complete."""
    system, target = filesystem(url)
    with path.open("rb") as source, system.open(target, "wb") as sink:
        shutil.copyfileobj(source, sink, _COPY_BYTES)


def remove(name: str) -> None:
    """Remove a file; nothing happens if there is none."""
    if not is_url(name):
        Path(local_path(name)).unlink(missing_ok=True)
        return
    system, path = filesystem(name)
    if system.exists(path):
        system.rm_file(path)


def sync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file to fill. It replaces `path`, whole and synced, if the block ends without an error."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_folder(path.parent)


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path in it. Raises `ConfigError` if a library for it is missing."""
    scheme = url.partition("://")[0]
    try:
        import fsspec

        return cast("tuple[Any, str]", _with_obstore(fsspec, scheme).core.url_to_fs(url))
    except (ImportError, ValueError) as error:
        hint = f"{install_hint('runs')} and the fsspec library of that store (for s3://, obstore or s3fs)"
        raise ConfigError(f"cannot reach {scheme}:// addresses: {error}", hint=hint) from error


def import_arrow() -> Any:
    """The module `pyarrow` with `pyarrow.compute` and `pyarrow.parquet` loaded. Raises `ConfigError` if it is not installed."""
    try:
        importlib.import_module("pyarrow.compute")
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow, which is not installed", hint=install_hint("runs")) from error


def _with_obstore(fsspec: Any, scheme: str) -> Any:
    """fsspec, with obstore registered for object stores whose own library is not installed."""
    if scheme in _OBSTORE and scheme not in fsspec.registry:
        try:
            fsspec.get_filesystem_class(scheme)
        except ImportError:
            from obstore.fsspec import register

            register(scheme)
    return fsspec


def _expand_local(name: str) -> tuple[list[str], bool]:
    if os.path.isdir(name):
        return list(_below(name)), True
    if os.path.isfile(name):
        return [name], False
    paths = [path for path in glob.iglob(name, recursive=True) if os.path.isfile(path)] if is_pattern(name) else []
    return paths, True


def _below(folder: str) -> Iterator[str]:
    for at, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith(".")]
        yield from (os.path.join(at, each) for each in names if not each.startswith("."))


def _expand_url(url: str) -> tuple[list[str], bool]:
    system, path = filesystem(url)
    many = is_pattern(path) or system.isdir(path)
    if is_pattern(path):
        paths = [each for each in system.glob(path) if system.isfile(each)]
    elif many:
        paths = system.find(path)
    else:
        paths = [path] if system.exists(path) else []
    return [system.unstrip_protocol(each) for each in paths], many


def _stat_url(url: str) -> Stat:
    system, path = filesystem(url)
    try:
        info = system.info(path)
    except FileNotFoundError as error:
        raise NotFound(f"no such object: {url}") from error
    changed = next((info[key] for key in _CHANGED if key in info), "")
    return Stat(int(info["size"]), str(changed))
