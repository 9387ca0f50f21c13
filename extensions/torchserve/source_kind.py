"""Model archives as a kind of sources. Cheap: each process that reads settings makes one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import BadArchive, HandlerLoadError
from penstock.extensions.torchserve.archives.kinds import ENDINGS, MANIFEST, archive_stem, is_archive
from penstock.model_spec import ModelSpec
from penstock.settings.source_kinds import SourceContext, SourceKind

if TYPE_CHECKING:
    from penstock.settings.layers import Layer


class ArchiveKind(SourceKind):
    """Few models are archives, so what reads them is imported where there is one."""

    name, origin, endings = "archive", "archive ", ENDINGS

    def fits(self, source: str) -> bool:
        return is_archive(source)

    def is_model(self, folder: Path, options: Mapping[str, Any]) -> bool:
        return (folder / MANIFEST).is_file() or "handler" in options

    def model_name(self, path: Path) -> str:
        from penstock.extensions.torchserve.archives.contents import read_archive

        try:
            return read_archive(path).manifest.name or archive_stem(path)
        except (BadArchive, OSError):
            # Its faults are reported with those of the other settings.
            return archive_stem(path)

    def layer(self, tree: Mapping[str, Any]) -> Layer:
        from penstock.extensions.torchserve.settings.archives import archive_layer

        return archive_layer(tree)

    def settings(self, source: str, options: Mapping[str, Any], models_dir: Path) -> dict[str, Any]:
        from penstock.extensions.torchserve.settings.archives import archive_table

        return archive_table(source, options, models_dir)

    def faults(self, spec: ModelSpec) -> list[str]:
        from penstock.extensions.torchserve.archives.contents import read_archive
        from penstock.extensions.torchserve.archives.model_settings import model_settings, refused_settings
        from penstock.extensions.torchserve.child.options import read_options

        try:
            read_options(spec.options)
            archive = read_archive(Path(spec.source), handler=_handler(spec))
        except HandlerLoadError as error:
            return [f"{error.message}; {error.hint}" if error.hint else error.message]
        refused = model_settings(archive.config).refused
        return [refused_settings(spec.source, refused)] if refused else []

    def missing_packages(self, spec: ModelSpec) -> dict[str, str]:
        from penstock.extensions.torchserve.archives.contents import archive_file, read_archive
        from penstock.extensions.torchserve.worker.archives import MAY_INSTALL
        from penstock.handlers.requirements import missing_of_text

        if spec.options.get(MAY_INSTALL):
            return {}
        path = Path(spec.source)
        contents = read_archive(path, handler=_handler(spec))
        file = contents.manifest.requirements_file
        if not file:
            return {}
        return missing_of_text(archive_file(path, contents, file).decode("utf-8", "replace"), f"{path.name}/{file}")

    def opened(self, spec: ModelSpec, context: SourceContext) -> ModelSpec:
        from penstock.extensions.torchserve.worker.archives import archive_spec

        return archive_spec(spec, context)


def _handler(spec: ModelSpec) -> str:
    return str(spec.options.get("handler") or "")


archive_kind = ArchiveKind()
