"""The model store: the folder from which models are registered. What was downloaded into it stays while a model names it."""

# D103: docs/design/protocols.md
from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from penstock.broker.store.aio import AsyncStore
from penstock.errors import BadArchive, StoreUnavailable
from penstock.extensions.torchserve.archives.contents import ArchiveContents, read_archive
from penstock.extensions.torchserve.archives.kinds import is_archive
from penstock.extensions.torchserve.gateway.errors import TorchServeError, bad_request
from penstock.extensions.torchserve.management.download import (
    Downloader,
    allowed_url,
    file_name,
    is_remote,
    is_scheme,
    is_workflow,
    not_allowed,
)

log = structlog.get_logger(__name__)

# Only the gateway writes here: a downloaded archive lies in a folder that is named by its content, under its own name.
DOWNLOADS = "downloads"
_UNFINISHED = ".part-"
# A download whose process ended is removed after this time. An archive that no model names any more is removed after the
# shorter one, because a registration that has just downloaded it is not stored yet.
UNFINISHED_S = 3_600.0
UNUSED_S = 600.0
_LOOK_S = 60.0
_NOT_KEPT = "model_store_not_kept"


@dataclass(frozen=True, slots=True)
class SeenUnused:
    """When an archive was first seen unused, in monotonic seconds, and when its folder had been changed last."""

    since: float
    changed_at: int


class ModelStore:
    """`folder` None: this gateway has no model store, and registers nothing."""

    def __init__(self, folder: Path | None, patterns: tuple[str, ...], downloader: Downloader) -> None:
        self._folder = folder
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._downloader = downloader

    async def source_of(self, url: str) -> str:
        """The path, below the store, of what a registration names; downloaded if it is remote. Raises `TorchServeError`."""
        if self._folder is None:
            raise TorchServeError(404, "ModelNotFoundException", "torchserve.model_store is not set, so no model is found.")
        if ".." in url:
            raise TorchServeError(404, "ModelNotFoundException", f"Relative path is not allowed in url: {url[:200]}")
        if is_remote(url):
            return await self._download(url, self._folder)
        if is_scheme(url):
            raise not_allowed(url)
        return await asyncio.to_thread(self._local, url, self._folder)

    async def model_source_of(self, url: str) -> str:
        """As `source_of`, for a model: a workflow is refused."""
        if is_workflow(url):
            raise bad_request(f"{url[:200]} is a workflow, which is not registered as a model.")
        return await self.source_of(url)

    async def contents(self, source: str) -> ArchiveContents | None:
        """What an archive of the store says of itself; None for a model's code or file. Raises `TorchServeError`, 400."""
        path = self.path_of(source)
        return await asyncio.to_thread(_contents, path, source) if is_archive(str(path)) else None

    def path_of(self, source: str) -> Path:
        """Where a source lies that `source_of` has found."""
        assert self._folder is not None
        return self._folder / source

    def _local(self, url: str, folder: Path) -> str:
        absent = TorchServeError(404, "ModelNotFoundException", f"Model not found at: {url[:200]}")
        try:
            path = (folder / url).resolve()
            # A link in the store may lead out of it, and the worker would not load that either.
            if not path.is_relative_to(folder.resolve()) or path == folder.resolve() or not path.exists():
                raise absent
        except (OSError, ValueError) as error:  # a name that is too long, or that no file can have
            raise absent from error
        # The path of a folder, an unpacked archive, ends with a slash.
        return f"{path.relative_to(folder.resolve())}{'/' if path.is_dir() else ''}"

    async def _download(self, url: str, folder: Path) -> str:
        checked, listed = allowed_url(url, self._patterns)
        name = file_name(checked)
        part = folder / DOWNLOADS / f"{_UNFINISHED}{uuid.uuid4().hex}"
        await asyncio.to_thread(part.mkdir, parents=True)
        try:
            await self._downloader.download(checked, part / name, listed=listed)
            return await asyncio.to_thread(_keep, part, name, folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)


class StoreKeeper:
    """Removes downloaded archives that no model names any more, every minute. `folder` None: there are none."""

    def __init__(self, folder: Path | None, store: AsyncStore) -> None:
        self._folder = folder
        self._store = store
        self._seen: dict[str, SeenUnused] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._folder is not None:
            self._task = asyncio.create_task(self._keep(self._folder / DOWNLOADS))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self, folder: Path) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                # A store that cannot be reached names no models, and then nothing is removed.
                rollouts = await self._store.rollouts()
                added = (table for stored in rollouts.values() for table in stored.rollout.added.values())
                sources = {str(table.get("source", "")) for table in added}
                self._seen = await asyncio.to_thread(remove_unused, folder, sources, self._seen, now=time.monotonic())
            except StoreUnavailable as error:
                log.debug(_NOT_KEPT, reason=error.message)
            except OSError as error:
                log.warning(_NOT_KEPT, reason=str(error))


def remove_unused(
    downloads: Path, sources: Iterable[str], seen: Mapping[str, SeenUnused], *, now: float
) -> dict[str, SeenUnused]:
    """Remove downloaded archives that no model has named for a while, and return those that are unused now. Blocks.

    `sources` are those of all models, `seen` is what the call before returned, `now` is in monotonic seconds.
    """
    used = {source.split("/")[1] for source in sources if source.startswith(f"{DOWNLOADS}/") and source.count("/") > 1}
    unused: dict[str, SeenUnused] = {}
    for entry in downloads.iterdir() if downloads.is_dir() else ():
        name, changed_at = entry.name, entry.stat().st_mtime_ns
        if name in used:
            continue
        # A registration that finds the archive here renews its time, and so does a download that goes on.
        is_known = name in seen and seen[name].changed_at == changed_at
        unused[name] = seen[name] if is_known else SeenUnused(now, changed_at)
        keep_s = UNFINISHED_S if name.startswith(_UNFINISHED) else UNUSED_S
        if now - unused[name].since >= keep_s:
            shutil.rmtree(entry, ignore_errors=True)
    return unused


def _contents(path: Path, shown: str) -> ArchiveContents:
    try:
        return read_archive(path)
    except BadArchive as error:
        # The archive's own words name the file by its path on this machine.
        reason = error.message.replace(str(path), Path(shown).name)
        raise TorchServeError(400, "InvalidModelException", f"The archive cannot be used: {reason}") from error


def _keep(part: Path, name: str, folder: Path) -> str:
    """Verify the archive in `part`, then put its folder to its place at once. Returns the archive's path below the store."""
    _contents(part / name, name)
    digest = _synced_digest(part / name)
    target = folder / DOWNLOADS / digest[:32]
    try:
        part.rename(target)
        _sync(target.parent)
    except OSError:
        # It is there already: the folder's name is its content.
        if not (target / name).exists():
            os.link(part / name, target / name)
            _sync(target)
    os.utime(target)
    return f"{DOWNLOADS}/{target.name}/{name}"


def _synced_digest(path: Path) -> str:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
