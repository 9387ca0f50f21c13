"""The settings that archives give to their models. Every other source overrides them, so a user's settings win."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from penstock.errors import BadArchive, ConfigError
from penstock.extensions.torchserve.archives.contents import read_archive
from penstock.extensions.torchserve.archives.kinds import is_archive
from penstock.extensions.torchserve.archives.model_settings import ARCHIVE_DEFAULTS, model_settings
from penstock.model_cache.entries import Entries
from penstock.settings.layers import Layer
from penstock.settings.models import version_class
from penstock.settings.remote_sources import is_remote, read_source

# An archive is read again when its file has changed. A worker looks at those that were loaded at run time at each beat; with
# more than are kept here, it would read them all each time.
_KEPT = 4_096
# How the origin of such a setting begins.
ARCHIVE = "archive "


def archive_layer(tree: Mapping[str, Any]) -> Layer:
    """The settings of the archives among the models of a merged tree.

    An archive that cannot be read gives none: its faults are reported with those of model files.
    """
    layer, cache = Layer(Path()), _models_dir(tree)
    for path, source, written in _archives(tree):
        said = archive_table(source, written.get("options") or {}, cache)
        _put(layer, path, {key: value for key, value in said.items() if key not in written or key == "options"}, source)
    _reset_others(layer, tree)
    return layer


def archive_table(source: str, options: Mapping[str, Any], models_dir: Path) -> dict[str, Any]:
    """The settings that an archive gives: those of its model-config.yaml over TorchServe's defaults. Only the defaults if it
    cannot be read, or is remote and not in the models' cache `models_dir`. `options` are those that the user wrote.
    """
    path = _fetched(source, models_dir) if is_remote(source) else source
    known = _read(path, str(options.get("handler") or "")) if path else None
    if known is None:
        return dict(ARCHIVE_DEFAULTS)
    version, values = known
    own = {**values.get("options", {}), **options}
    return {**ARCHIVE_DEFAULTS, **values, **({"options": own} if own else {}), "version": version}


def _models_dir(tree: Mapping[str, Any]) -> Path:
    """As `Settings.models_dir`, of a tree that is not checked yet."""
    cache, store = tree.get("models_cache"), tree.get("store")
    own = cache.get("dir") if isinstance(cache, dict) else None
    state = store.get("state_dir") if isinstance(store, dict) else None
    return Path(str(own)) if own else Path(str(state or "")) / "models"


def _fetched(source: str, models_dir: Path) -> str:
    """Where an archive from elsewhere lies on this machine; empty if it has not been fetched."""
    try:
        entry = Entries(models_dir).remembered(str(read_source(source)))
    except ConfigError:
        return ""
    return str(entry.path) if entry else ""


def _archives(tree: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, Mapping[str, Any]]]:
    """The path, the source, and what others say of each version whose source is an archive."""
    models = tree.get("models")
    for name, table in models.items() if isinstance(models, dict) else ():
        if not isinstance(table, dict):
            continue
        if _is_archive(table):
            yield ("models", name), table["source"], table
        versions = table.get("versions")
        for version, own in versions.items() if isinstance(versions, dict) else ():
            if isinstance(own, dict) and _is_archive(own):
                # A version inherits the model's own fields.
                yield ("models", name, "versions", version), own["source"], {"version": version, **table, **own}


def _is_archive(table: Mapping[str, Any]) -> bool:
    return isinstance(table.get("source"), str) and is_archive(table["source"])


def _put(layer: Layer, path: tuple[str, ...], values: Mapping[str, Any], source: str) -> None:
    for key, value in values.items():
        layer.put((*path, key), value, f"{ARCHIVE}{source}")


def _reset_others(layer: Layer, tree: Mapping[str, Any]) -> None:
    """Versions with a source of their own do not get the settings of the archive in the model's own fields."""
    for _, name, *rest in list(layer.values):
        if len(rest) != 1 or rest[0] == "version":
            continue
        for version, own in (tree["models"][name].get("versions") or {}).items():
            path = ("models", name, "versions", version, rest[0])
            if isinstance(own, dict) and own.get("source") and rest[0] not in own and path not in layer.values:
                layer.put(path, version_class().model_fields[rest[0]].get_default(call_default_factory=True), "default")


def _values(path: Path, handler: str, _: tuple[int, int, int]) -> tuple[str, Mapping[str, Any]] | None:
    try:
        archive = read_archive(path, handler=handler)
    except (BadArchive, OSError):
        return None
    return archive.manifest.version, model_settings(archive.config).values


def _read(source: str, handler: str) -> tuple[str, Mapping[str, Any]] | None:
    try:
        status = os.stat(source)
    except OSError:
        return None
    # The time of a folder says nothing of the files in it.
    read = _values if stat.S_ISDIR(status.st_mode) else _kept_values
    return read(Path(source), handler, (status.st_mtime_ns, status.st_size, status.st_ino))


_kept_values = lru_cache(maxsize=_KEPT)(_values)
