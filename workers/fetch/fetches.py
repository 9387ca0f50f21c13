"""The models that one worker fetches or unpacks: each in a thread of its own, so that no slot waits and others serve on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from penstock.errors import PenstockError
from penstock.model_cache.entries import Lock
from penstock.model_spec import ModelSpec
from penstock.settings.remote_sources import is_remote
from penstock.settings.source_kinds import SourceContext, SourceKind, kind_of
from penstock.words import size
from penstock.workers.fetch.cache import CacheLimits, ModelCache

log = structlog.get_logger(__name__)
MODEL_FETCHING = "model_fetching"
MODEL_FETCHED = "model_fetched"
MODEL_NOT_FETCHED = "model_not_fetched"

_SAY_EVERY_S = 5.0
# What `SlotContext.fetch` does: the spec with a source on this machine and the resolved source, or None while it is fetched.
Located = tuple[ModelSpec, str]
Key = tuple[str, str]


class ModelFetches:
    """`kept` asks the store for the source that a version was first loaded from, anywhere; empty if it was never loaded.

    Any slot's thread may call `locate`. What was fetched stays in the cache until it is forgotten.
    """

    def __init__(self, folder: Path, limits: CacheLimits, kept: Callable[[ModelSpec], str]) -> None:
        self._folder = folder
        self._limits = limits
        self._kept = kept
        self._guard = threading.Lock()
        self._running: dict[Key, _Fetch] = {}

    def locate(self, spec: ModelSpec) -> Located | None:
        """Raises `PenstockError` once for each attempt that failed; the next call begins another."""
        if not is_remote(spec.source) and kind_of(spec.source) is None:
            return spec, ""
        key = (spec.name, spec.version)
        with self._guard:
            fetch = self._running.get(key)
            if fetch is None:
                fetch = self._running[key] = _Fetch(spec, self._folder, self._limits, self._kept)
                fetch.start()
                return None
            if fetch.error is not None:
                del self._running[key]
                raise fetch.error
        return fetch.located

    def forget(self, key: Key) -> None:
        """The last slot of a version left: a later load of its name gets the files that are there then."""
        with self._guard:
            former = self._running.pop(key, None)
        if former:
            former.release()


class _Fetch(threading.Thread):
    """One attempt. `located` or `error` is set at its end. A daemon thread, so a worker ends without waiting for it."""

    def __init__(self, spec: ModelSpec, folder: Path, limits: CacheLimits, kept: Callable[[ModelSpec], str]) -> None:
        super().__init__(name=f"fetch-{spec.name}", daemon=True)
        self._spec = spec
        self._cache = ModelCache(folder, limits)
        self._folder = folder
        self._limits = limits
        self._kept = kept
        self._progress = _Progress(spec)
        self._is_released = False
        # They keep what is used in the cache while this worker lives.
        self._locks: list[Lock] = []
        self.located: Located | None = None
        self.error: PenstockError | None = None

    def run(self) -> None:
        spec = self._spec
        try:
            here, source = self._fetched(spec) if is_remote(spec.source) else (spec, "")
            kind = kind_of(here.source)
            self.located = (self._opened(here, kind) if kind is not None else here), source
        except PenstockError as error:
            self.error = error
        except Exception as error:
            log.exception(MODEL_NOT_FETCHED, model=spec.name)
            self.error = PenstockError(f"{spec.name} could not be fetched: {type(error).__name__}: {error}")
        if self.error or self._is_released:
            self.release()

    def release(self) -> None:
        """Let the cache delete what was used, if it needs the room. It is what was used last, so it is not the first to go."""
        self._is_released = True
        for lock in self._locks:
            lock.close()

    def _fetched(self, spec: ModelSpec) -> Located:
        began = time.monotonic()
        model = self._cache.fetch(
            spec.source, kept=self._kept(spec), trust_remote_code=spec.trust_remote_code, on_progress=self._progress
        )
        took_s = round(time.monotonic() - began, 3)
        log.info(MODEL_FETCHED, model=spec.name, version=spec.version, source=model.source, bytes=model.size_bytes, s=took_s)
        self._locks.append(model.lock)
        return replace(spec, source=model.path), model.source

    def _opened(self, spec: ModelSpec, kind: SourceKind) -> ModelSpec:
        def note(event: str, fields: Mapping[str, Any]) -> None:
            log.info(event, model=spec.name, version=spec.version, **fields)

        def warn(warning: str, fields: Mapping[str, Any]) -> None:
            log.warning(warning, model=spec.name, version=spec.version, **fields)

        limits = (self._limits.max_bytes, self._limits.install_max_bytes)
        say = self._progress.say
        return kind.opened(spec, SourceContext(self._folder, *limits, hold=self._locks.append, say=say, note=note, warn=warn))


@dataclass(slots=True)
class _Progress:
    """A log line every few seconds."""

    spec: ModelSpec
    said_at: float = float("-inf")

    def __call__(self, done: int, total: int) -> None:
        self.say(f"{size(done)} of {size(total)}" if total else "another process fetches it")

    def say(self, progress: str) -> None:
        now = time.monotonic()
        if now < self.said_at + _SAY_EVERY_S:
            return
        self.said_at = now
        log.info(MODEL_FETCHING, model=self.spec.name, version=self.spec.version, progress=progress)
