"""Reloads a model when a file of its code changes, for people who write one: `penstock up --reload`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import structlog

from penstock.model_spec import ModelSpec
from penstock.settings.layers import source_file
from penstock.settings.remote_sources import is_remote
from penstock.workers.slot.slot import Slot

log = structlog.get_logger(__name__)
MODEL_RELOADED = "model_reloaded"
SOURCES_NOT_SEEN = "sources_not_seen"
LOOK_EVERY_S = 0.5

_MOST_FILES = 2_000
_NOT_ENTERED = ("__pycache__", "site-packages", "node_modules")
# By file: when it was changed, in nanoseconds, and its size in bytes.
Seen = dict[Path, tuple[int, int]]


class SourceWatch:
    """For a thread of its own. Watches the file that a model's source names, and the Python files in its folder and below. What
    an archive was unpacked to is forgotten by `forget`, so that the new one is.
    """

    def __init__(self, slots: Callable[[], Sequence[Slot]], forget: Callable[[ModelSpec], None]) -> None:
        self._slots = slots
        self._forget = forget
        self._seen: dict[str, Seen] = {}

    def expect(self, sources: Iterable[str]) -> None:
        """Note how the files are before they are loaded, so that a change made since then is seen."""
        self._seen |= {source: look(source) for source in sources}

    def run_once(self, now: float) -> None:
        slots = self._slots()
        for source in {slot.spec.source for slot in slots}:
            files = look(source)
            before = self._seen.setdefault(source, files)
            if files != before:
                self._seen[source] = files
                self._reload([slot for slot in slots if slot.spec.source == source], changed(before, files))

    def _reload(self, slots: Sequence[Slot], files: Sequence[Path]) -> None:
        for name in {slot.spec.name for slot in slots}:
            log.info(MODEL_RELOADED, model=name, changed=[str(file) for file in files[:5]])
        for slot in slots:
            self._forget(slot.spec)
            slot.reload()


def look(source: str) -> Seen:
    """The files of a source, as they are now; none of one that lies elsewhere, because a version keeps its revision."""
    if is_remote(source):
        return {}
    file = source_file(source) or module_file(source.partition(":")[0])
    return {} if file is None else {path: print_ for path in _files(file) if (print_ := _print(path)) is not None}


def changed(before: Seen, after: Seen) -> list[Path]:
    """The files that were added, removed or changed."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def module_file(name: str) -> Path | None:
    """Where a module lies, found without importing its package; None if it is nowhere on the path."""
    place = Path(*name.split("."))
    tried = (Path(folder) / path for folder in sys.path for path in (place.with_suffix(".py"), place / "__init__.py"))
    return next((path for path in tried if path.is_file()), None)


def _files(file: Path) -> Iterator[Path]:
    yield file
    yield from islice(_python_files(file if file.is_dir() else file.parent), _MOST_FILES)


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_ENTERED)
        yield from (Path(root, name) for name in names if name.endswith(".py"))


def _print(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
