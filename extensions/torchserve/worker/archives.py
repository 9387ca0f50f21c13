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
from penstock.settings.source_kinds import SourceContext

ARCHIVE_OPENED = "archive_opened"
ARCHIVE_SETTING_DIFFERS = "archive_setting_differs"
ARCHIVE_PACKAGES_INSTALLED = "archive_packages_installed"
ARCHIVE_PACKAGES_MISSING = "archive_packages_missing"
# The option for TorchServe's setting that allows it to install packages.
MAY_INSTALL = "install_py_dep_per_model"
# How long pip may take for one archive.
_INSTALL_S = 900.0


# What loads an archive in its child.
LOADER = "penstock.extensions.torchserve.child.model:imported_archive"


def archive_spec(spec: ModelSpec, context: SourceContext) -> ModelSpec:
    """The spec as its child gets it: its source is a folder.

    Raises `BadArchive`, `DiskFull`, and `HandlerLoadError` for packages that cannot be installed.
    """
    handler = str(spec.options.get("handler") or "")
    archive = opened(Path(spec.source), context.folder, handler=handler, max_bytes=context.max_bytes)
    if archive.lock:
        context.hold(archive.lock)
    context.note(ARCHIVE_OPENED, {"archive": spec.source, "folder": str(archive.folder), "sha256": archive.digest})
    _check_settings(spec, archive, context)
    here = replace(spec, source=str(archive.folder), loader=LOADER)
    return _with_packages(here, archive, context) if archive.manifest.requirements_file else here


def _check_settings(spec: ModelSpec, archive: OpenedArchive, context: SourceContext) -> None:
    said = model_settings(archive.config)
    for one in not_plain(said.report):
        fields = {"setting": one.key, "what": one.parity.value, "why": one.why, "ours": one.ours}
        context.warn(ARCHIVE_SETTING_DIFFERS, fields)
    if said.refused:
        raise BadArchive(
            f"{spec.source}: {archive.manifest.config_file} asks for what penstock does not do: {'; '.join(said.refused)}"
        )


def _with_packages(spec: ModelSpec, archive: OpenedArchive, context: SourceContext) -> ModelSpec:
    requirements = archive.folder / archive.manifest.requirements_file
    if not spec.options.get(MAY_INSTALL):
        _name_missing(requirements, context)
        return spec
    began = time.monotonic()
    order = PackageOrder(spec.name, requirements, archive.digest, context.say, _INSTALL_S, context.install_max_bytes)
    packages, lock = installed(order, Entries(context.folder))
    context.hold(lock)
    context.note(ARCHIVE_PACKAGES_INSTALLED, {"folder": str(packages), "s": round(time.monotonic() - began, 3)})
    return replace(spec, env={**spec.env, "PYTHONPATH": _path_with(packages, spec)})


def _name_missing(requirements: Path, context: SourceContext) -> None:
    """TorchServe ignores the file unless it may install, so the model is loaded anyway: it may not need the packages."""
    try:
        lacking = missing_packages([f"-r {requirements}"])
    except HandlerLoadError as error:
        context.warn(ARCHIVE_PACKAGES_MISSING, {"why": error.message})
        return
    if lacking:
        hint = f"{install_line(lacking)}; or options.{MAY_INSTALL} = true, for this model alone"
        context.warn(ARCHIVE_PACKAGES_MISSING, {"packages": in_words(lacking), "hint": hint})


def _path_with(packages: Path, spec: ModelSpec) -> Variable:
    """They come before the worker's own packages, which may be of another release."""
    own = spec.env.get("PYTHONPATH")
    rest = own.text if own else os.environ.get("PYTHONPATH")
    return Variable(os.pathsep.join(filter(None, (str(packages), rest))))
