"""Makes an archive ready for its child: unpacked, its settings checked, its packages installed or named."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from penstock.errors import BadArchive, HandlerLoadError
from penstock.extensions.torchserve.archives.model_settings import model_settings
from penstock.extensions.torchserve.archives.opening import OpenedArchive, opened
from penstock.extensions.torchserve.archives.parity import not_plain
from penstock.extensions.torchserve.worker.packages import PackageOrder, installed
from penstock.handlers.requirements import in_words, install_line, missing_packages
from penstock.model_cache.entries import Entries
from penstock.model_spec import ModelSpec, Variable
from penstock.settings.source_kinds import SourcePlace

ARCHIVE_OPENED = "archive_opened"
ARCHIVE_SETTING_DIFFERS = "archive_setting_differs"
ARCHIVE_PACKAGES_INSTALLED = "archive_packages_installed"
ARCHIVE_PACKAGES_MISSING = "archive_packages_missing"
# The option under which TorchServe's setting stands that lets it install packages.
MAY_INSTALL = "install_py_dep_per_model"
# How long pip may take for one archive.
_INSTALL_S = 900.0


# What loads an archive in its child.
LOADER = "penstock.extensions.torchserve.child.model:imported_archive"


def archive_spec(spec: ModelSpec, place: SourcePlace) -> ModelSpec:
    """The spec as its child gets it: its source is a folder.

    Raises `BadArchive`, `DiskFull`, and `HandlerLoadError` for packages that cannot be installed.
    """
    handler = str(spec.options.get("handler") or "")
    found = opened(Path(spec.source), place.folder, handler=handler, max_bytes=place.max_bytes)
    if found.lock:
        place.hold(found.lock)
    place.note(ARCHIVE_OPENED, {"archive": spec.source, "folder": str(found.folder), "sha256": found.digest})
    _check_settings(spec, found, place)
    here = replace(spec, source=str(found.folder), loader=LOADER)
    return _with_packages(here, found, place) if found.manifest.requirements_file else here


def _check_settings(spec: ModelSpec, found: OpenedArchive, place: SourcePlace) -> None:
    said = model_settings(found.config)
    for one in not_plain(said.report):
        fields = {"setting": one.key, "what": one.parity.value, "why": one.why, "ours": one.ours}
        place.warn(ARCHIVE_SETTING_DIFFERS, fields)
    if said.refused:
        raise BadArchive(
            f"{spec.source}: {found.manifest.config_file} asks for what penstock does not do: {'; '.join(said.refused)}"
        )


def _with_packages(spec: ModelSpec, found: OpenedArchive, place: SourcePlace) -> ModelSpec:
    requirements = found.folder / found.manifest.requirements_file
    if not spec.options.get(MAY_INSTALL):
        _name_missing(requirements, place)
        return spec
    began = time.monotonic()
    order = PackageOrder(spec.name, requirements, found.digest, place.say, _INSTALL_S, place.install_max_bytes)
    packages, lock = installed(order, Entries(place.folder))
    place.hold(lock)
    place.note(ARCHIVE_PACKAGES_INSTALLED, {"folder": str(packages), "s": round(time.monotonic() - began, 3)})
    return replace(spec, env={**spec.env, "PYTHONPATH": _path_with(packages, spec)})


def _name_missing(requirements: Path, place: SourcePlace) -> None:
    """TorchServe takes no notice of the file unless it may install, so the model is tried: it may do without."""
    try:
        lacking = missing_packages([f"-r {requirements}"])
    except HandlerLoadError as error:
        place.warn(ARCHIVE_PACKAGES_MISSING, {"why": error.message})
        return
    if lacking:
        hint = f"{install_line(lacking)}; or options.{MAY_INSTALL} = true, for this model alone"
        place.warn(ARCHIVE_PACKAGES_MISSING, {"packages": in_words(lacking), "hint": hint})


def _path_with(packages: Path, spec: ModelSpec) -> Variable:
    """They come before the worker's own packages, which may be of another release."""
    own = spec.env.get("PYTHONPATH")
    rest = own.text if own else os.environ.get("PYTHONPATH")
    return Variable(os.pathsep.join(filter(None, (str(packages), rest))))
