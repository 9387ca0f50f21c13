"""What an archive holds, without unpacking it: its manifest, its model-config.yaml, and the names of its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.errors import BadArchive
from penstock.extensions.torchserve.archives.kinds import MANIFEST, archive_stem, root_of
from penstock.extensions.torchserve.archives.manifest import (
    MAX_MANIFEST_BYTES,
    ArchiveManifest,
    absent_manifest,
    absent_members,
    read_manifest,
)
from penstock.extensions.torchserve.archives.members import ArchiveLimits, MemberCheck, MemberKind
from penstock.extensions.torchserve.archives.model_config import MAX_CONFIG_BYTES, read_config
from penstock.extensions.torchserve.archives.packed import packed_members


@dataclass(frozen=True, slots=True)
class ArchiveContents:
    """`config` is model-config.yaml as a whole. `root` is the one folder that all members of a tar.gz lie in, else empty.

    `has` tells whether a file lies in the archive, by its path below the root.
    """

    manifest: ArchiveManifest
    config: dict[str, Any]
    root: str = ""
    has: Callable[[str], bool] = field(default=lambda path: False, compare=False)


def read_archive(path: Path, *, handler: str = "", stem: str = "", limits: ArchiveLimits | None = None) -> ArchiveContents:
    """Reads a packed archive or a folder. Raises `BadArchive` with every fault.

    `handler` overrides that of the manifest. `stem`: the name of a model without a manifest, by default that of its file.

    A tar.gz has to be decompressed up to its end, piece by piece in memory.
    """
    if path.is_dir():
        contents = _read_folder(path, stem or archive_stem(path))
    else:
        contents = _read_packed(path, stem or archive_stem(path), limits or ArchiveLimits())
    contents = replace(contents, manifest=replace(contents.manifest, handler=handler or contents.manifest.handler))
    faults = absent_members(contents.manifest, contents.has)
    if faults:
        raise BadArchive(f"{path}: {'; '.join(faults)}", hint="pack it again with the file")
    return contents


def archive_file(path: Path, contents: ArchiveContents, name: str) -> bytes:
    """The bytes of a small file of the archive, by its path below the root; none if it is not there. Raises `BadArchive`."""
    if path.is_dir():
        return _file(path / name, MAX_CONFIG_BYTES) or b""
    below = f"{contents.root}/{name}" if contents.root else name
    return members_of_archive(path, ArchiveLimits(), lambda file: file == below, MAX_CONFIG_BYTES)[1].get(below, b"")


def _read_packed(path: Path, stem: str, limits: ArchiveLimits) -> ArchiveContents:
    # The manifest lies at the top, or in the only folder of a tar.gz.
    files, manifests = members_of_archive(
        path, limits, lambda name: name == MANIFEST or name.partition("/")[2] == MANIFEST, MAX_MANIFEST_BYTES
    )
    root = root_of(files)
    below = f"{root}/" if root else ""
    manifest = _manifest(manifests.get(below + MANIFEST), str(path), stem)
    config: dict[str, Any] = {}
    name = below + manifest.config_file
    if manifest.config_file and name in files:
        _, configs = members_of_archive(path, limits, lambda file: file == name, MAX_CONFIG_BYTES)
        config = read_config(configs[name], manifest.config_file, str(path))
    return ArchiveContents(manifest, config, root, lambda file: below + file in files)


def members_of_archive(
    path: Path, limits: ArchiveLimits, is_wanted: Callable[[str], bool], max_bytes: int
) -> tuple[frozenset[str], dict[str, bytes]]:
    """The paths of all files, and the bytes of those that are wanted, up to one more than `max_bytes` of each.

    Raises `BadArchive` for an archive that is unsafe or damaged.
    """
    files: set[str] = set()
    wanted: dict[str, bytes] = {}
    with path.open("rb") as file:
        for name, kind, chunks in packed_members(file, MemberCheck(str(path), path.stat().st_size, limits)):
            if kind is MemberKind.FOLDER:
                continue
            files.add(name)
            if is_wanted(name):
                wanted[name] = _up_to(chunks, max_bytes)
    return frozenset(files), wanted


def _up_to(chunks: Any, max_bytes: int) -> bytes:
    data = b""
    for chunk in chunks:
        data += chunk
        if len(data) > max_bytes:
            break
    return data


def _read_folder(folder: Path, stem: str) -> ArchiveContents:
    manifest = _manifest(_file(folder / MANIFEST, MAX_MANIFEST_BYTES), str(folder), stem)
    data = _file(folder / manifest.config_file, MAX_CONFIG_BYTES) if manifest.config_file else None
    config = read_config(data, manifest.config_file, str(folder)) if data is not None else {}
    return ArchiveContents(manifest, config, has=lambda file: (folder / file).is_file())


def _file(path: Path, max_bytes: int) -> bytes | None:
    """The file's bytes, up to one more than `max_bytes`; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        raise BadArchive(f"{path} cannot be read: {error.strerror}", hint="check the rights of the file") from error


def _manifest(data: bytes | None, archive: str, stem: str) -> ArchiveManifest:
    return read_manifest(data, archive) if data is not None else absent_manifest(stem)
