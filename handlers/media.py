"""Reads a body of some media type into a value of the item type, and writes an output as bytes. Knows nothing of batches."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import orjson

from penstock.errors import HandlerContractError, InvalidInput, UnsupportedMedia
from penstock.handlers.schema import REFUSED, Reader, reader_for
from penstock.job import (
    CHARSETS,
    PACKED_MEDIA,
    TENSORS_MEDIA,
    split_media_type,
)
from penstock.outputs.bundle import BUNDLE_MEDIA
from penstock.outputs.files import OutputFiles, file_as, file_of, is_file_class
from penstock.outputs.media import Media

JSON = "application/json"
TEXT = "text/plain"
BYTES = "application/octet-stream"
ANYTHING = "*/*"
# An output over this fails. It would be copied several times on its way, and no store takes values much larger.
MAX_OUTPUT_BYTES = 500_000_000
# The most characters that JSON needs for a byte of an array: `false,` for a bool.
_JSON_PER_BYTE = 6
_LARGE_ARRAY_BYTES = 1 << 20
_DOUBLE_BYTES = 8
_BYTES_LIKE = (bytes, bytearray, memoryview)
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_ARRAYS = ("numpy", "torch", "jax", "jaxlib")


@dataclass(frozen=True, slots=True)
class Codec:
    """Reads the inputs of one model. `raw`: its items are bytes, and a body of any media type is passed on as it is.

    `form_schema`: by which forms are read, if it is not the reader's own. `arrays`: it takes tensors as numpy's arrays.
    """

    item_type: Any
    reader: Reader
    raw: bool
    form_schema: dict[str, Any] | None = None
    arrays: bool = False

    def decode(self, content_type: str, data: bytes) -> Any:
        """One input. Raises `InvalidInput` if it does not fit the item type, `UnsupportedMedia` for other media types."""
        if self.raw and content_type not in PACKED_MEDIA:
            return data
        if content_type == JSON:
            try:
                return self.reader.parse_json(data)
            except REFUSED:
                # Read again for an error that names the place of each fault.
                return self.reader.from_json(data)
        return self._decode_other(content_type, data)

    def from_value(self, value: Any) -> Any:
        """What `decode` makes of the JSON for `value`. A model of bytes gets bytes as they are, and a string as UTF-8."""
        return _as_bytes(value) if self.raw else self.reader.from_value(value)

    def from_values(self, values: list[Any]) -> list[Any]:
        """`from_value` of each, much faster together. Raises `InvalidInput` if any of them is bad."""
        return list(map(_as_bytes, values)) if self.raw else self.reader.from_values(values)

    def schema(self) -> dict[str, Any] | None:
        """JSON Schema of one input; None if the model takes anything."""
        return None if self.raw else self.reader.schema()

    def _decode_other(self, content_type: str, data: bytes) -> Any:
        if content_type in PACKED_MEDIA:
            # Imported here, because few models get packed inputs.
            from penstock.handlers.packed_inputs import decode_packed

            return decode_packed(self, content_type, data)
        media, charset = split_media_type(content_type)
        if media == JSON or media.endswith("+json"):
            return self.reader.from_json(data)
        if is_file(self.item_type):
            return self.item_type.read(_typed_file(data, content_type))
        if media.startswith("text/"):
            return self.reader.from_text(_text(data, charset))
        if self.item_type is Any:
            return data
        raise UnsupportedMedia(f"the model takes {' or '.join(accepted(self.item_type))}, not {media or 'an untyped body'}")


def codec_for(item_type: Any) -> Codec:
    """Raises `HandlerLoadError` when inputs cannot be read into `item_type`."""
    if item_type is bytes:
        return Codec(bytes, reader_for(Any), raw=True)
    return Codec(item_type, reader_for(item_type), raw=False)


def accepted(item_type: Any) -> tuple[str, ...]:
    """The media types that inputs of this item type may have. A model of bytes, or without types, takes `*/*`."""
    if item_type is bytes or item_type is Any:
        return (ANYTHING,)
    if is_file(item_type):
        return (item_type.media, BYTES, JSON)
    return (JSON, TEXT) if item_type is str else (JSON,)


def is_file(item_type: Any) -> bool:
    """Whether the whole item is a `penstock.File`. Asked without importing that class, which few models use."""
    return isinstance(item_type, type) and issubclass(item_type, bytes) and hasattr(item_type, "media")


def _typed_file(data: bytes, content_type: str) -> bytes:
    from penstock.inputs.file import File

    return File(data, content_type)


class _FilesWithin(Exception):
    """The output that is being written as JSON has files in it."""


def encode(value: Any, *, media: str = "", limit: int = MAX_OUTPUT_BYTES) -> tuple[str, bytes]:
    """The media type and the bytes of an output. Bytes and files stay as they are; all else, strings too, is written as JSON.

    With a `media` type, that of the model's return annotation, the output is a file of this type. Arrays and scalars of numpy
    and torch are written as lists and numbers, pydantic models as objects, an output with files in it as a bundle. Raises
    `HandlerContractError` for what JSON cannot hold (NaN, Infinity, unknown classes), and for an output of more than `limit`
    bytes.
    """
    if media:
        value = file_as(value, media)
    if isinstance(value, _BYTES_LIKE):
        _check_size(memoryview(value).nbytes, limit)
        return BYTES, bytes(value)
    if isinstance(value, Media):
        stored, data = value.written()
        return stored, encode(data, limit=limit)[1]
    try:
        return JSON, _checked_json(value, _encoder, _plain, limit)
    except _FilesWithin:
        return _with_files(value, limit)


def encode_tensors(value: Any, *, media: str = "", limit: int = MAX_OUTPUT_BYTES) -> tuple[str, bytes]:
    """As `encode`, for a caller who sent tensors: arrays keep their bytes, and what no tensor holds is an element of BYTES."""
    from penstock.handlers.tensors import tensors_of_output

    if media:
        value = file_as(value, media)
    data = tensors_of_output(value, lambda part: encode(part, limit=limit))
    _check_size(len(data), limit)
    return TENSORS_MEDIA, data


def _checked_json(value: Any, encoder: msgspec.json.Encoder, plain: Callable[[Any], Any], limit: int) -> bytes:
    try:
        data = _json(value, encoder)
    except _UNWRITABLE as error:
        raise HandlerContractError(f"the output cannot be written as JSON: {error}") from error
    except MemoryError as error:
        raise HandlerContractError("output too large: its JSON does not fit into the memory of the model's process") from error
    _check_size(len(data), limit)
    # msgspec writes NaN and Infinity as null and reports nothing. The value is walked only if there is a null.
    if b"null" in data:
        _refuse_nan(msgspec.to_builtins(value, enc_hook=plain))
    return data


def _with_files(value: Any, limit: int) -> tuple[str, bytes]:
    if is_file_class(type(value)):
        return encode(file_of(value), limit=limit)
    files = OutputFiles()
    encoder = msgspec.json.Encoder(enc_hook=lambda part: files.reference(part) if is_file_class(type(part)) else _foreign(part))
    data = _checked_json(value, encoder, lambda part: None if is_file_class(type(part)) else _plain(part), limit)
    bundle = files.bundle(data)
    _check_size(len(bundle), limit)
    return BUNDLE_MEDIA, bundle


def too_large(size: int, limit: int) -> str:
    return f"output too large: {size} bytes, limit {limit}"


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise HandlerContractError(too_large(size, limit))


def plain(value: Any, media: str = "") -> Any:
    """What a reader of `encode`'s JSON would get; of a file, its bytes. Raises as `encode` does."""
    if media:
        value = file_as(value, media)
    if isinstance(value, _BYTES_LIKE):
        return bytes(value)
    return file_of(value).plain if is_file_class(type(value)) else _builtins(value)


def plain_all(values: list[Any], media: str = "") -> list[Any]:
    """`plain` of each, much faster together. Raises `HandlerContractError` if any of them is bad."""
    kinds = set(map(type, values))
    if kinds == {bytes}:
        return values
    if media or any(issubclass(kind, _BYTES_LIKE) or is_file_class(kind) for kind in kinds):
        return [plain(value, media) for value in values]
    made: list[Any] = _builtins(values)
    return made


def _builtins(value: Any) -> Any:
    try:
        made = msgspec.to_builtins(value, enc_hook=_values, str_keys=True)
        # Encoding finds plain values that JSON cannot hold. It writes NaN as null, and a null is found faster than a NaN.
        data = _json(made)
    except _UNWRITABLE as error:
        raise HandlerContractError(f"the output cannot be written as JSON: {error}") from error
    if b"null" in data:
        _refuse_nan(made)
    return made


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else _encoder.encode(value)


def _text(data: bytes, charset: str) -> str:
    codec = CHARSETS.get(charset)
    if codec is None:
        raise UnsupportedMedia(f"texts in the charset {charset[:40]!r} are not read; send UTF-8")
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the text cannot be read as {charset}: {error}") from error


def _foreign(value: Any) -> Any:
    """As `_plain`, but numpy's arrays are written at their own precision: float32 takes half the bytes and half the time."""
    if type(value).__module__ == "numpy" and _writable(value):
        return msgspec.Raw(_numbers(value))
    return _plain(value)


def _values(value: Any) -> Any:
    """What a reader of `_foreign`'s JSON gets. NaN stays, so that it can be refused."""
    if type(value).__module__ == "numpy" and _writable(value):
        data = _numbers(value)
        return value.tolist() if b"null" in data else orjson.loads(data)
    # In a row a file within a value is base64, as bytes are.
    return bytes(file_of(value).data) if is_file_class(type(value)) else _plain(value)


def _writable(value: Any) -> bool:
    """Whether orjson can write it: a contiguous array of plain numbers in this machine's byte order."""
    dtype = getattr(value, "dtype", None)
    return (
        hasattr(value, "flags")
        and getattr(value, "ndim", 0) > 0
        and value.flags.c_contiguous
        and dtype is not None
        and dtype.kind in "fiub"
        and dtype.itemsize <= _DOUBLE_BYTES
        and dtype.isnative
    )


def _plain(value: Any) -> Any:
    """A plain value for what msgspec does not know. Arrays are known by their module: numpy and torch are not imported."""
    if type(value).__module__.partition(".")[0] in _ARRAYS and hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(type(value), "__pydantic_validator__"):
        return value.model_dump()
    if is_file_class(type(value)):
        raise _FilesWithin
    raise TypeError(
        f"{type(value).__module__}.{type(value).__qualname__} has no JSON form; return plain values, lists or a dataclass"
    )


_encoder = msgspec.json.Encoder(enc_hook=_foreign)


def _json(value: Any, encoder: msgspec.json.Encoder = _encoder) -> bytes:
    if not _is_memory_limited():
        return encoder.encode(value)
    # Where memory runs out, msgspec raises if it grows a bytearray; if it grows its own bytes, the process ends.
    data = bytearray()
    encoder.encode_into(value, data)
    return bytes(data)


@cache
def _is_memory_limited() -> bool:
    """Whether an allocation of this process can fail: a child sets its limit before it loads its model."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY


def _numbers(array: Any) -> bytes:
    """The JSON of an array. Where memory runs out, orjson ends the process: so that much is asked for before."""
    if array.nbytes > _LARGE_ARRAY_BYTES and _is_memory_limited():
        bytearray(array.nbytes * _JSON_PER_BYTE)
    return orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)


def _refuse_nan(value: Any, path: str = "") -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise HandlerContractError(
            f"the output holds {value} at {path or '/'}, which JSON cannot write; return None or a number"
        )
    for key, part in _parts(value):
        _refuse_nan(part, f"{path}/{key}")


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()
