"""An unpacked archive as a model that was imported and not yet initialised (D96)."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import HandlerLoadError
from penstock.extensions.torchserve.archives.opening import OpenedArchive, opened_folder
from penstock.extensions.torchserve.child.envelopes import ONE_REQUEST
from penstock.extensions.torchserve.child.handler import ArchiveHandler
from penstock.extensions.torchserve.child.options import ArchiveOptions, check_config, read_options
from penstock.extensions.torchserve.child.resolve import EntryPoint, entry_point, missing_here
from penstock.extensions.torchserve.child.rows import RowCodec, row_codec
from penstock.handlers.decorator import ModelAttributes
from penstock.handlers.load import ImportedModel
from penstock.handlers.media import ANYTHING
from penstock.handlers.schema import ItemTypes

# The second one has forms passed on unread: each of their fields becomes an entry of the row.
_ACCEPTS = (ANYTHING, "multipart/form-data")
# A handler whose source has this name answers in chunks.
_SENDING = "send_intermediate_predict_response"


class ArchiveModel(NamedTuple):
    """`create` makes the handler; `codec` reads its inputs."""

    label: str
    attributes: ModelAttributes
    codec: RowCodec
    create: Any


def archive_model(folder: Path, options: Mapping[str, Any], *, model: str = "") -> ArchiveModel:
    """Imports the archive's handler; from here on the folder is the process's own. Raises `HandlerLoadError`.

    `model`: the name of an archive that has no manifest.
    """
    if not folder.is_dir():
        why = "is packed; a worker unpacks it before it loads it" if folder.exists() else "does not exist; check the path"
        raise HandlerLoadError(f"the archive {folder} {why}")
    said = read_options(options)
    archive = opened_folder(folder.absolute(), handler=said.handler, stem=model)
    check_config(archive.config)
    _enter(archive.folder, said)
    try:
        entry = entry_point(archive.folder, archive.manifest.handler)
    except HandlerLoadError as error:
        raise HandlerLoadError(error.message + missing_here(archive), hint=error.hint) from error
    sends_chunks = any(_SENDING in text for text in _files(archive.folder, entry))
    reason = f"the envelope {said.service_envelope} takes one request" if said.service_envelope in ONE_REQUEST else ""
    attributes = ModelAttributes(accepts=_ACCEPTS, description=_description(archive, entry, reason))
    create = partial(ArchiveHandler, entry, archive, said, one_by_one=reason, sends_chunks=sends_chunks)
    return ArchiveModel(entry.label, attributes, row_codec(decodes=said.decode_input_request), create)


def imported_archive(folder: Path, options: Mapping[str, Any], *, model: str = "") -> ImportedModel:
    """The loader of archives: `archive_model` as the model that the child goes on with."""
    archive = archive_model(folder, options, model=model)
    return ImportedModel(archive.label, folder, archive.attributes, ItemTypes(asks=True), archive.create, archive.codec)


def _enter(folder: Path, said: ArchiveOptions) -> None:
    """Make the process one that serves this archive: TorchServe's workers do the same before they import a handler."""
    from penstock.extensions.torchserve.child.surface.hook import install

    os.chdir(folder)
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))
    # Without this no line of a handler's own logging would be seen.
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    install()
    if not said.limit_max_image_pixels:
        _allow_large_images()


def _allow_large_images() -> None:
    try:
        from PIL import Image
    except ImportError:
        # The handler reads no images then.
        return
    Image.MAX_IMAGE_PIXELS = None


def _files(folder: Path, entry: EntryPoint) -> list[str]:
    """The handler's source and that of its base classes. Empty for a built-in handler."""
    if entry.file is None:
        return []
    owner = getattr(entry.handle, "__self__", None)
    sources = [] if owner is None else [_source_file(folder, kind) for kind in type(owner).__mro__]
    files = {file for file in sources if file is not None} or {entry.file}
    return [file.read_text("utf-8", "replace") for file in files]


def _source_file(folder: Path, kind: type) -> Path | None:
    """Where a class is written; None if that is not in the archive."""
    try:
        file = Path(inspect.getfile(kind)).absolute()
    except (TypeError, OSError):
        return None
    return file if file.is_relative_to(folder) else None


def _description(archive: OpenedArchive, entry: EntryPoint, reason: str) -> str:
    manifest = archive.manifest
    named = f"TorchServe's archive {manifest.name or archive.folder.name} {manifest.version}, handler {entry.label}."
    return f"{named} Its rows run one by one: {reason}." if reason else named
