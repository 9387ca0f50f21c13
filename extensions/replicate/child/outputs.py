"""What a predictor answers with, as outputs of penstock: a path or an open file becomes a file of the output."""

from __future__ import annotations

import io
import mimetypes
import pathlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from penstock.errors import HandlerContractError
from penstock.outputs.files import is_file_class
from penstock.outputs.media import Media, filename_fault

_OCTETS = "application/octet-stream"


def output_of(value: Any) -> Any:
    """The value with its files read. Raises `HandlerContractError` for a path at which there is no file."""
    if isinstance(value, pathlib.Path):
        return _file_at(value)
    if isinstance(value, io.IOBase):
        return _opened(value)
    if isinstance(value, Enum):
        return output_of(value.value)
    if isinstance(value, Mapping):
        return {name: output_of(own) for name, own in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [output_of(own) for own in value]
    members = _members(value)
    return value if members is None else {name: output_of(own) for name, own in members.items()}


def has_files(value: Any) -> bool:
    """Whether an output as `output_of` makes it has a file somewhere."""
    if isinstance(value, dict):
        return any(map(has_files, value.values()))
    return any(map(has_files, value)) if isinstance(value, list) else is_file_class(type(value))


def _members(value: Any) -> dict[str, Any] | None:
    """Those of an object that a predictor returns: pydantic's, or a dataclass."""
    if hasattr(type(value), "__pydantic_validator__"):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value) and not isinstance(value, type):
        return {own.name: getattr(value, own.name) for own in fields(value)}
    return None


def _file_at(path: pathlib.Path) -> Media:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise HandlerContractError(f"predict returned a path that cannot be read as a file: {error.strerror}") from error
    return _media(data, path.name)


def _opened(file: io.IOBase) -> Media:
    if file.seekable():
        file.seek(0)
    data = file.read()
    name = getattr(file, "name", "")
    return _media(data.encode() if isinstance(data, str) else data, pathlib.Path(name).name if isinstance(name, str) else "")


def _media(data: bytes, name: str) -> Media:
    kind = mimetypes.guess_type(name)[0] or _OCTETS
    return Media(data, kind, name if name and not filename_fault(name) else None)
