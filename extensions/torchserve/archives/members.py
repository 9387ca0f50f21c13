"""Decides whether the members of an archive may be unpacked. Pure; one fault refuses the whole archive.

Archives come from elsewhere, and what unpacks them has the rights of the worker: no member may lie outside the archive's
folder, be anything but a file or a folder, stand for another file on some file system, or take more room than is sane.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.errors import BadArchive
from penstock.words import size

_REPACK = "pack it again with torch-model-archiver, and trust no file whose origin you do not know"
_NAME_BYTES = 255
_PATH_BYTES = 1024


class MemberKind(StrEnum):
    """The values appear in messages."""

    FILE = "a file"
    FOLDER = "a folder"
    LINK = "a link"
    DEVICE = "a device, a pipe or another special file"


@dataclass(frozen=True, slots=True)
class Member:
    """`path` is as the archive has it; `size_bytes` is what it says it takes when unpacked."""

    path: str
    kind: MemberKind
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What one archive may hold. Beyond `free_ratio_bytes`, it may unpack to `max_ratio` times its own size: weights are hardly
    compressible, while a bomb of zeros becomes a thousand times larger.
    """

    max_members: int = 20_000
    max_bytes: int = 50 << 30
    max_ratio: int = 100
    free_ratio_bytes: int = 256 << 20


@dataclass(slots=True)
class MemberCheck:
    """Called with each member in turn; raises `BadArchive` at the first fault. `packed_bytes`: the size of the archive."""

    archive: str
    packed_bytes: int
    limits: ArchiveLimits = field(default_factory=ArchiveLimits)
    size_bytes: int = 0
    _count: int = 0
    # The path in the form that stands for all its spellings, and what lies there.
    _seen: dict[str, tuple[str, MemberKind]] = field(default_factory=dict)

    @property
    def allowed_bytes(self) -> int:
        """How much the archive may unpack to."""
        return min(self.limits.max_bytes, max(self.limits.free_ratio_bytes, self.packed_bytes * self.limits.max_ratio))

    def add(self, member: Member) -> str:
        """The path below the folder that the archive is unpacked into, with `/` and without a `./` before it."""
        self._count += 1
        if self._count > self.limits.max_members:
            raise self._refused(f"it holds more than {self.limits.max_members:,} members")
        if member.kind not in (MemberKind.FILE, MemberKind.FOLDER):
            raise self._refused(f"{_shown(member.path)} is {member.kind}; an archive may hold files and folders only")
        path = self._safe(member.path.rstrip("/") if member.kind is MemberKind.FOLDER else member.path)
        self._claim(path, member)
        self.size_bytes += member.size_bytes
        if self.size_bytes > self.allowed_bytes:
            raise self._too_large()
        return path

    def check_unpacked(self, written_bytes: int) -> None:
        """`written_bytes` came out so far; the sizes that the archive states are not trusted."""
        if written_bytes > self.allowed_bytes:
            raise self._too_large()

    def _safe(self, path: str) -> str:
        fault = _path_fault(path)
        if fault:
            raise self._refused(f"the member {_shown(path)} {fault}")
        return path.removeprefix("./") if path != "." else ""

    def _claim(self, path: str, member: Member) -> None:
        """Each file once, also where upper and lower case are one, and no file where a folder is needed."""
        parts = path.split("/") if path else []
        for depth in range(1, len(parts)):
            self._enter("/".join(parts[:depth]), MemberKind.FOLDER)
        if path:
            self._enter(path, member.kind)

    def _enter(self, path: str, kind: MemberKind) -> None:
        same = unicodedata.normalize("NFC", path).casefold()
        known, known_kind = self._seen.setdefault(same, (path, kind))
        if known != path:
            raise self._refused(f"{_shown(known)} and {_shown(path)} differ in upper and lower case or spelling alone")
        if known_kind is not kind:
            raise self._refused(f"{_shown(path)} is a file and a folder")
        if kind is MemberKind.FILE:
            if same in self._files:
                raise self._refused(f"{_shown(path)} is in it twice")
            self._files.add(same)

    _files: set[str] = field(default_factory=set)

    def _too_large(self) -> BadArchive:
        if self.allowed_bytes == self.limits.max_bytes:
            return self._refused(f"unpacked it takes more than {size(self.limits.max_bytes)}")
        return self._refused(
            f"it has {size(self.packed_bytes)} and unpacks to more than {size(self.allowed_bytes)}, which no model does"
        )

    def _refused(self, why: str) -> BadArchive:
        return BadArchive(f"{self.archive} was not unpacked: {why}", hint=_REPACK)


def _path_fault(path: str) -> str:
    parts = path.removeprefix("./").split("/")
    if path.startswith("/") or (len(path) > 1 and path[1] == ":"):
        return "has an absolute path, so it would lie outside the model's folder"
    if "\\" in path or any(not character.isprintable() for character in path):
        return "has a character in its name that means something else elsewhere"
    if ".." in parts:
        return "has .. in its path, so it would lie outside the model's folder"
    if path not in ("", ".") and any(part in ("", ".") for part in parts):
        return "has an empty part in its path"
    if len(path.encode(errors="replace")) > _PATH_BYTES or any(len(p.encode(errors="replace")) > _NAME_BYTES for p in parts):
        return f"has a longer name than {_NAME_BYTES} bytes, or a longer path than {_PATH_BYTES}"
    return "has no name" if not path else ""


def _shown(path: str) -> str:
    return repr(path if len(path) <= 100 else f"{path[:97]}...")
