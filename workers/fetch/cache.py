"""The models' cache of this machine: a source becomes the path of a file here, fetched once however many processes want it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from penstock.distribution import install_hint
from penstock.errors import ConfigError, DiskFull, is_disk_full
from penstock.model_cache.entries import Entries, Entry, Lock, entry_name
from penstock.model_cache.room import FULL_HINT, CacheRoom
from penstock.settings.remote_sources import RemoteSource, pinned, read_source
from penstock.workers.fetch.choice import model_file, wanted
from penstock.workers.fetch.download import download, patiently
from penstock.workers.fetch.origin import FetchFailed, Listing, Origin, OriginAway, RemoteFile

_OFFLINE_HINT = "fetch it ahead with `penstock models fetch`, or set models_cache.offline = false"
# Called with the bytes that are here and all that are to come: (0, 0) while another process fetches the model.
OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """`stall_s`: how long a place may send nothing. `is_offline`: ask no network, and take what is here.
    `install_max_bytes`: what pip may take for one archive.
    """

    max_bytes: int
    stall_s: float = 30.0
    is_offline: bool = False
    install_max_bytes: int = 10 << 30


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """`path`: the model's file here, with `:Name` if the source names one. `source`: the source at its fixed revision.

    The entry stays in the cache while `lock` is held.
    """

    path: str
    source: str
    size_bytes: int
    lock: Lock


@dataclass(frozen=True, slots=True)
class _Order:
    """One fetch: the entry's name, the source at its fixed revision, its model file, and all files beside it."""

    name: str
    source: RemoteSource
    model: str
    files: Sequence[RemoteFile]


class ModelCache:
    """Safe to use from several threads and processes at once. `environment` holds endpoints and tokens."""

    def __init__(self, folder: Path, limits: CacheLimits, environment: Mapping[str, str] | None = None) -> None:
        self.entries = Entries(folder)
        self._folder = folder
        self._limits = limits
        self._room = CacheRoom(self.entries, limits.max_bytes)
        self._environment = os.environ if environment is None else environment

    def fetch(
        self, text: str, *, kept: str = "", trust_remote_code: bool = False, on_progress: OnProgress | None = None
    ) -> FetchedModel:
        """The model of this source, here. `kept`: the resolved source that a version had before, which it keeps.

        Raises `ConfigError` for a source that cannot be read, `FetchFailed` for one that cannot be had.
        """
        source = pinned(read_source(text), kept)
        if source.is_fixed or self._limits.is_offline:
            model = self._remembered(source)
            if model:
                return model
        if self._limits.is_offline:
            what = f"{source} is not in the models' cache {self._folder}, and models_cache.offline is set"
            raise FetchFailed(what, hint=_OFFLINE_HINT)
        with open_origin(source.scheme, stall_s=self._limits.stall_s, environment=self._environment) as origin:
            try:
                listing = patiently(lambda: origin.look(source))
                return self._fetched(origin, source, listing, trust_remote_code, on_progress or _unseen)
            except OriginAway as error:
                model = self._remembered(source)
                if model:
                    return model
                raise FetchFailed(
                    f"{error}; and the models' cache has nothing of it", hint="check the network and the source"
                ) from error

    def local(self, text: str, *, kept: str = "") -> FetchedModel | None:
        """The cached entry of this source, without asking a network."""
        return self._remembered(pinned(read_source(text), kept))

    def _remembered(self, source: RemoteSource) -> FetchedModel | None:
        entry = self.entries.remembered(_key(source))
        return self._in_use(entry, source) if entry else None

    def _in_use(self, entry: Entry, source: RemoteSource) -> FetchedModel | None:
        """None if the entry is being deleted."""
        lock = self.entries.lock(entry.name, shared=True)
        if lock is None:
            return None
        if self.entries.whole(entry.name) is None:
            lock.close()
            return None
        self.entries.touch(entry)
        return _model_of(entry, source, lock)

    def _fetched(
        self, origin: Origin, source: RemoteSource, listing: Listing, trust_remote_code: bool, on_progress: OnProgress
    ) -> FetchedModel:
        order = _order(source, listing, trust_remote_code=trust_remote_code)
        entry, lock = self.entries.held(
            order.name, lambda: self._fill(order, origin, on_progress), on_wait=lambda: on_progress(0, 0)
        )
        # Under its fixed revision too: that is what a later start asks for, maybe without a network.
        for key in (_key(source), entry.source):
            self.entries.remember(key, entry)
        return _model_of(entry, source, lock)

    def _fill(self, order: _Order, origin: Origin, on_progress: OnProgress) -> None:
        """Download what is missing of the entry. On a full disk nothing is left: a part would take the room of others."""
        files = [_sized(origin, order.source, file) for file in order.files]
        total = sum(file.size_bytes or 0 for file in files)
        try:
            entry = self._room.begin(order.name, str(order.source), order.model, total)
            done = 0
            for file in files:
                download(origin, order.source, file, entry.files / file.path, partial(_add, on_progress, done, total))
                done += file.size_bytes or 0
            self.entries.complete(entry)
        except DiskFull:
            self.entries.drop_partial(order.name)
            raise
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.entries.drop_partial(order.name)
            raise DiskFull(f"{order.source}: the disk of the models' cache is full", hint=FULL_HINT) from error

    def prune(self) -> list[Entry]:
        """Delete the entries that no process uses or fetches; returns the deleted ones."""
        gone = []
        for entry in self.entries.all():
            with self.entries.exclusive(entry.name) as is_free:
                if is_free:
                    self.entries.delete(entry)
                    gone.append(entry)
        return gone


@contextmanager
def open_origin(scheme: str, *, stall_s: float, environment: Mapping[str, str]) -> Iterator[Origin]:
    """The origin for this scheme. Its library is imported here, so that only its users pay for it. Raises `ConfigError`."""
    if scheme == "s3":
        try:
            from penstock.workers.fetch.objects import ObjectOrigin
        except ImportError as missing:
            raise ConfigError(
                f"a source begins with s3://, and obstore is not there: {missing}", hint=install_hint("objectstore")
            ) from missing
        yield ObjectOrigin()
        return
    from penstock.workers.fetch.hub import HubOrigin
    from penstock.workers.fetch.web import UrlOrigin, Web

    with closing(Web(stall_s=stall_s)) as web:
        yield HubOrigin(web, environment) if scheme == "hf" else UrlOrigin(web)


def _model_of(entry: Entry, source: RemoteSource, lock: Lock) -> FetchedModel:
    name = f":{source.name}" if source.name else ""
    return FetchedModel(f"{entry.path}{name}", entry.source, entry.size_bytes, lock)


def _order(source: RemoteSource, listing: Listing, *, trust_remote_code: bool) -> _Order:
    model = model_file(source, listing.files, trust_remote_code=trust_remote_code)
    files = [_with_sum(file, source, model) for file in wanted(listing.files, model)]
    # The revision of a folder of a bucket is that of the whole folder.
    fixed = replace(source, revision=listing.revision, file=model if source.scheme == "hf" else source.file, name="")
    return _Order(entry_name(str(fixed)), fixed, model, files)


def _sized(origin: Origin, source: RemoteSource, file: RemoteFile) -> RemoteFile:
    if file.size_bytes is not None:
        return file
    return replace(file, size_bytes=patiently(lambda: origin.size_of(source, file)))


def _with_sum(file: RemoteFile, source: RemoteSource, model: str) -> RemoteFile:
    """The sum that the source names stands over what the place says."""
    if source.sha256 and file.path == model:
        return replace(file, sum_kind="sha256", sum=source.sha256)
    return file


def _key(source: RemoteSource) -> str:
    return str(replace(source, name=""))


def _add(on_progress: OnProgress, before: int, total: int, here: int) -> None:
    on_progress(before + here, total)


def _unseen(done: int, total: int) -> None:
    """Progress that is not reported."""
