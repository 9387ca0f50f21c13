"""A file of a request: bytes that know their media type and name, and how JSON writes them."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Self
from urllib.parse import quote, unquote

from penstock.errors import InvalidInput
from penstock.job import is_media_accepted, split_media_type

OCTETS = "application/octet-stream"
_NAME = "name="


class File(bytes):
    """The bytes of one file, with its media type and the name that its sender gave it (empty: none).

    As an item's type, or the type of one of its fields, it is a file part of a form, base64 or a `data:` URL in JSON, and a
    body of any media type where it is the whole item. The name is the caller's own: never open a path that is made of it.
    """

    content_type: str
    filename: str
    # The media types that a file of this class may have.
    media: ClassVar[str] = "*/*"

    def __new__(cls, data: bytes | bytearray | memoryview = b"", content_type: str = OCTETS, filename: str = "") -> Self:
        made = super().__new__(cls, data)
        made.content_type, made.filename = content_type, filename
        return made

    def __repr__(self) -> str:
        name = f", {self.filename!r}" if self.filename else ""
        return f"<{type(self).__name__} of {len(self)} bytes, {self.content_type}{name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (bytes(self), self.content_type, self.filename)

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """The JSON Schema of such a file."""
        media = OCTETS if cls.media == "*/*" else cls.media
        return {"type": "string", "contentEncoding": "base64", "contentMediaType": media}

    @classmethod
    def read(cls, value: Any) -> Self:
        """A file from its value in JSON or in a form. Raises `InvalidInput`."""
        if isinstance(value, str):
            value = from_text(value)
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise InvalidInput(f"a file must be base64 or a data: URL, not {type(value).__name__}")
        file = value if isinstance(value, File) else File(value)
        media = split_media_type(file.content_type)[0]
        if media != OCTETS and not is_media_accepted(media, (cls.media,)):
            raise InvalidInput(f"the file is {media}, and the model takes {cls.media} here")
        return file if isinstance(file, cls) else cls(file, file.content_type, file.filename)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(cls._validated)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> dict[str, Any]:
        return cls.schema()

    @classmethod
    def _validated(cls, value: Any) -> Self:
        try:
            return cls.read(value)
        except InvalidInput as error:
            # pydantic adds the place of a fault only to a ValueError.
            raise ValueError(error.message) from error


class Image(File):
    """A file that must be an image (`image/*`, or of no known media type). What its bytes hold is for the handler to check."""

    media = "image/*"


# Set in a thread while it reads an input whose URLs it fetches.
_fetch: ContextVar[Callable[[str], File] | None] = ContextVar("fetch", default=None)


@contextmanager
def fetching(fetch: Callable[[str], File]) -> Iterator[None]:
    """Within the block, this thread fetches http and https URLs that stand for files."""
    token = _fetch.set(fetch)
    try:
        yield
    finally:
        _fetch.reset(token)


def from_text(text: str) -> File:
    """The file in base64 or a `data:` URL, or at a URL within `fetching`. Raises `InvalidInput`, and what `fetch` raises."""
    if text[:8].lower().startswith(("http://", "https://")):
        fetch = _fetch.get()
        if fetch is None:
            raise InvalidInput("files are not fetched from URLs here; send the file in a form, or as base64")
        return fetch(text)
    head, comma, rest = text.partition(",") if text.startswith("data:") else ("", "", text)
    if head and not (comma and head.endswith(";base64")):
        raise InvalidInput("the data: URL must be base64, as in data:image/png;base64,...")
    try:
        data = b64decode(rest, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"the file is not valid base64: {error}") from error
    media, *options = head.removeprefix("data:").removesuffix(";base64").split(";")
    name = next((option.removeprefix(_NAME) for option in options if option.startswith(_NAME)), "")
    return File(data, media or OCTETS, unquote(name))


def data_url(data: bytes) -> str:
    """The bytes as a `data:` URL; those of a `File` with its media type and name."""
    file = data if isinstance(data, File) else File(data)
    name = f";{_NAME}{quote(file.filename, safe='')}" if file.filename else ""
    return f"data:{file.content_type}{name};base64,{b64encode(file).decode()}"
