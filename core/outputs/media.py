"""A file that a model answers with: bytes, their media type and, if it has one, a name. Pure."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

BytesLike = bytes | bytearray | memoryview

# RFC 9110, 8.3.1, without the rarer characters of a token.
_TYPE = re.compile(
    r"[\w!#$&^.+-]+/[\w!#$&^.+-]+"
    r'(?:[ \t]*;[ \t]*[\w!#$&^.+*-]+=(?:[\w!#$&^.+*\'%-]+|"[ !#-\[\]-~]*"))*',
    re.ASCII,
)
_OWN_PARAMETER = re.compile(r";[ \t]*(?:filename\*?|x-penstock-head)=", re.IGNORECASE)
# Types that penstock gives a meaning of its own, such as a run's shards.
_OWN_TYPES = "application/vnd.penstock."
_MAX_TYPE_CHARS = 200
_MAX_NAME_BYTES = 200
# Behind the media type, as it is stored: the name in the form of RFC 8187.
_NAMED = "; filename*=UTF-8''"
# After both: the handler's response head (`penstock.outputs.response_head`). Only the gateway reads it.
HEAD_MARK = "; x-penstock-head="


class Media:
    """A file as a model's output. It keeps its media type, so a browser shows a PNG as an image, and its name, if any.

    `content_type` is a media type such as `image/png` or `text/csv; charset=utf-8`; `filename` a name without a path.
    Raises `ValueError` for others, and `TypeError` unless `data` is bytes-like.
    """

    __slots__ = ("content_type", "data", "filename")

    def __init__(self, data: BytesLike, content_type: str, filename: str | None = None) -> None:
        if not isinstance(data, BytesLike):
            raise TypeError(f"Media takes bytes, not {type(data).__name__}")
        fault = type_fault(content_type) or (filename is not None and filename_fault(filename))
        if fault:
            raise ValueError(fault)
        self.data = data
        self.content_type = content_type
        self.filename = filename

    def written(self) -> tuple[str, BytesLike]:
        """The media type as it is stored, with the name, and the bytes."""
        return stored_type(self.content_type, self.filename), self.data

    @property
    def plain(self) -> Any:
        """The plain value that stands for the file in a row of a run."""
        return bytes(self.data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Media) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash((self.content_type, self.filename))

    def __repr__(self) -> str:
        name = f", {self.filename!r}" if self.filename is not None else ""
        return f"<Media {self.content_type!r}{name}, {memoryview(self.data).nbytes} bytes>"

    def _parts(self) -> tuple[object, ...]:
        return self.content_type, self.filename, self.data


def type_fault(content_type: str) -> str:
    """Why this is no media type for an output; empty if it is one."""
    if len(content_type) > _MAX_TYPE_CHARS or not _TYPE.fullmatch(content_type):
        return f"{content_type[:80]!r} is not a media type such as image/png"
    if _OWN_PARAMETER.search(content_type):
        return "a media type holds neither the file's name, which is passed as filename, nor penstock's own parameters"
    if content_type.lower().startswith(_OWN_TYPES):
        return f"types below {_OWN_TYPES} are penstock's own"
    return ""


def filename_fault(name: str) -> str:
    """Why this is no name for a file of an output; empty if it is one. No name leads out of a folder or is hidden in it."""
    if not name.isprintable() or not 0 < len(name.encode()) <= _MAX_NAME_BYTES:
        return f"a filename has 1 to {_MAX_NAME_BYTES} bytes of printable text"
    if "/" in name or "\\" in name or name.startswith("."):
        return f"{name!r} is not a filename: it may not have slashes, nor begin with a dot"
    return ""


def stored_type(content_type: str, filename: str | None) -> str:
    """The media type as it is stored with an output: a name is a parameter, so an output without one stores nothing more."""
    return content_type if filename is None else f"{content_type}{_NAMED}{quote(filename, safe='')}"


def split_filename(stored: str) -> tuple[str, str | None]:
    """The media type and the name that `stored_type` joined."""
    content_type, mark, name = without_head(stored).partition(_NAMED)
    return content_type, unquote(name) if mark else None


def without_head(stored: str) -> str:
    """The media type, with the file's name if it has one, for protocols without a response head."""
    return stored.partition(HEAD_MARK)[0]


def filename_parameters(name: str) -> str:
    """The name as parameters of a Content-Disposition: for all readers, and in full for those that know RFC 8187."""
    plain = "".join(char if char.isascii() and char.isprintable() and char not in '"\\%' else "_" for char in name)
    return f'filename="{plain}"' + ("" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}")
