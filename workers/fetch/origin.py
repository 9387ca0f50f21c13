"""The calls of an origin of models: which files it has at which revision, and the bytes of one file from some byte on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import HandlerLoadError
from penstock.settings.remote_sources import RemoteSource


class OriginAway(Exception):
    """The place did not answer, or broke off; trying again may help."""


class FetchFailed(HandlerLoadError):
    """The source cannot provide the model; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file by its path within the source. `size_bytes` None: the place has to be asked. `sum_kind` is sha256, git (the id of
    its blob in git) or, where the place keeps no sum, empty. `tag`: what must not change while the file is being read.
    """

    path: str
    size_bytes: int | None = None
    sum_kind: str = ""
    sum: str = ""
    tag: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source at one `revision`, which means the same bytes for ever."""

    revision: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, slots=True)
class FileBytes:
    """The bytes of a file from `start` on, which is 0 where the place cannot begin in the middle."""

    start: int
    chunks: Iterator[bytes]


class Origin(Protocol):
    """Any call raises `OriginAway` if trying again may help, else `FetchFailed`."""

    def look(self, source: RemoteSource) -> Listing:
        """Which files there are now, or at the source's revision."""

    def size_of(self, source: RemoteSource, file: RemoteFile) -> int:
        """The size of one file in bytes."""

    def read(self, source: RemoteSource, file: RemoteFile, start: int) -> AbstractContextManager[FileBytes]:
        """The file's bytes from `start` on, if the place can; else from its beginning."""
