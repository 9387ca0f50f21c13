"""Which sources are model archives, and what the names in them mean. Cheap, because this is asked of every model."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path, PurePosixPath

INFORMATION = "MAR-INF"
# Of a workflow, whose functions are run as models.
WORKFLOW_INFORMATION = "WAR-INF"
WORKFLOW_MANIFEST = f"{WORKFLOW_INFORMATION}/MANIFEST.json"
MANIFEST = f"{INFORMATION}/MANIFEST.json"
ENDINGS = (".mar", ".war", ".tar.gz", ".tgz")
FORMS = "an archive is a .mar file (zip), a .tar.gz file with one folder, or a folder that holds MAR-INF/MANIFEST.json"


def is_archive(source: str) -> bool:
    """Whether a source is a model archive: by its ending, or as a folder of this machine."""
    return is_archive_file(source) or ("/" in source and "://" not in source and Path(source).is_dir())


def is_archive_file(source: str) -> bool:
    """Whether the ending is that of a packed archive. An address may have a checksum behind it."""
    return source.partition("#")[0].partition("?")[0].lower().endswith(ENDINGS)


def archive_stem(path: Path) -> str:
    """The name of the file without its ending, which is the name of a model whose archive has no manifest."""
    name = path.name
    return next((name[: -len(ending)] for ending in ENDINGS if name.lower().endswith(ending)), name)


def root_of(paths: Collection[str]) -> str:
    """The one folder that all files lie in; empty if there is none. Folders of a manifest do not count."""
    firsts = {path.partition("/")[0] for path in paths}
    if len(firsts) != 1 or any("/" not in path for path in paths):
        return ""
    return "" if firsts <= {INFORMATION, WORKFLOW_INFORMATION} else firsts.pop()


def handler_module(handler: str) -> tuple[str, str]:
    """Module and function of a `handler`: `folder/my_handler.py:serve` is (`my_handler`, `serve`); by default `handle`."""
    file, _, function = handler.partition(":")
    return PurePosixPath(file).name.removesuffix(".py"), function or "handle"
