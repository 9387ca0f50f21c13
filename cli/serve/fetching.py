"""Downloads models into this machine's cache, with a bar on a terminal and lines elsewhere.

A separate module, because it loads an HTTP client and the handlers' package, which only commands with such models need.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.cli.display import is_colored, print_faint
from penstock.model_cache.entries import Lock
from penstock.model_spec import ModelSpec
from penstock.settings.remote_sources import is_remote
from penstock.settings.source_kinds import SourceContext, kind_of
from penstock.settings.tables import Settings
from penstock.words import size
from penstock.workers.fetch.cache import CacheLimits, FetchedModel, ModelCache

_LINE_EVERY_S = 2.0
# Locks on the cached models of this command, so that they are kept until it ends.
_held: list[Lock] = []


def model_cache(settings: Settings) -> ModelCache:
    limits = settings.models_cache
    return ModelCache(settings.models_dir, CacheLimits(limits.max_bytes, is_offline=limits.offline))


def fetch_model(settings: Settings, source: str, *, trust_remote_code: bool) -> FetchedModel:
    """The newest files of this source that its revision allows. Raises `ConfigError` or `FetchFailed`."""
    with _progress(source) as on_progress:
        return model_cache(settings).fetch(source, trust_remote_code=trust_remote_code, on_progress=on_progress)


def fetch_missing(settings: Settings) -> None:
    """Fetch what the declared models lack here. What is here stays: the worker knows which revision a version keeps."""
    for spec in settings.specs():
        if is_remote(spec.source):
            located(spec, settings)


def located(spec: ModelSpec, settings: Settings) -> ModelSpec:
    """The spec with a source on this machine; fetches it if it is not here."""
    if not is_remote(spec.source):
        return spec
    files = model_cache(settings).local(spec.source)
    files = files or fetch_model(settings, spec.source, trust_remote_code=spec.trust_remote_code)
    files.lock.close()
    return replace(spec, source=files.path)


def opened(spec: ModelSpec, settings: Settings) -> ModelSpec:
    """The spec with a source on this machine as a child process gets it: an archive is unpacked, with its packages. Raises
    `PenstockError`.
    """
    kind = kind_of(spec.source)
    if kind is None:
        return spec

    def warn(event: str, fields: Mapping[str, Any]) -> None:
        print_faint(f"{event}: {', '.join(f'{name} {value}' for name, value in fields.items() if value)}")

    def note(event: str, fields: Mapping[str, Any]) -> None:
        """Of what went well a command says nothing."""

    cache = settings.models_cache
    limits = (cache.max_bytes, cache.install_max_bytes)
    return kind.opened(
        spec, SourceContext(settings.models_dir, *limits, hold=_held.append, say=print_faint, note=note, warn=warn)
    )


def located_here(spec: ModelSpec, settings: Settings) -> ModelSpec | None:
    """The spec with a source on this machine; None for a model that has not been fetched yet."""
    if not is_remote(spec.source):
        return spec
    files = model_cache(settings).local(spec.source)
    if files is None:
        return None
    files.lock.close()
    return replace(spec, source=files.path)


@contextmanager
def _progress(source: str) -> Iterator[Callable[[int, int], None]]:
    name = source.partition("?")[0].partition("#")[0]
    if not is_colored(sys.stderr):
        yield _Lines(name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"fetching {name}", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


class _Lines:
    """At most one line every two seconds, and none for what takes less."""

    def __init__(self, name: str) -> None:
        self._name, self._last = name, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._last + _LINE_EVERY_S:
            return
        self._last = now
        what = f"{size(done)} of {size(total)}" if total else "another process fetches it"
        print_faint(f"fetching {self._name}: {what}")
