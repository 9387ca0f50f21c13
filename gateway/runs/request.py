"""The body of POST /v1/runs and its checks: members, metadata, and the paths that a run may read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from penstock.errors import BadParameter, BadRequest, InvalidInput
from penstock.gateway.asgi.negotiation import idempotency_key
from penstock.run import lasting_json

if TYPE_CHECKING:
    from penstock.gateway.auth.keys import Caller

T = TypeVar("T", bound=Struct)

MAX_PAIRS, MAX_PAIR_KEY, MAX_PAIR_VALUE = 16, 64, 512
LONGEST_WINDOW_S = 30 * 86_400.0
# Metadata names with this prefix are ours. Callers cannot set or see them.
RESERVED = "penstock:"
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
# The members that a fingerprint always has. Records keep it, so it may not change with the next new member.
_FIRST = (
    "model input version input_format output_format columns carry max_failed shard_rows deadline_s metadata tags headers query "
    "parts"
)


class RunRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/runs. `input` is the id of an uploaded file, or a path below one of `runs.roots`."""

    model: str
    input: str
    version: str = ""
    input_format: str = ""
    output_format: str = "jsonl"
    columns: dict[str, str] = {}
    carry: list[str] = []
    max_failed: int | str | None = None
    shard_rows: int = 0
    deadline_s: float = 0.0
    metadata: dict[str, str] = {}
    tags: list[str] = []
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    parts: int = 1


@dataclass(frozen=True, slots=True)
class RunMembers:
    """Members of that body that an extension reads. `fields`: their names, types and defaults; `schema`: theirs, by name.

    `words`: from the body, its caller and its model to the run's words for the functions in the store, by the extension's
    name. Raises `InvalidInput`.
    """

    fields: Sequence[tuple[str, Any, Any]]
    schema: Mapping[str, Any]
    words: Callable[[Any, Caller, str], Mapping[str, str]]


def request_with(members: Iterable[RunMembers]) -> type[RunRequest]:
    """The body with our members, then those of extensions."""
    fields = [field for one in members for field in one.fields]
    kind = msgspec.defstruct("RunRequest", fields, bases=(RunRequest,), forbid_unknown_fields=True, kw_only=True)
    assert issubclass(kind, RunRequest)
    return kind


def read_body(value: Any, kind: type[T]) -> T:
    """The body as a value. Raises an `InvalidInput` that names the wrong member."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        what, _, where = str(fault).partition(" - at ")
        pointer = where.strip("`").removeprefix("$").replace(".", "/")
        raise InvalidInput(what, errors=[{"pointer": pointer, "detail": what}]) from None


def check_metadata(metadata: dict[str, str]) -> dict[str, str]:
    """The same metadata. Raises `BadParameter` for too many pairs, for long ones, and for reserved names."""
    if len(metadata) > MAX_PAIRS:
        raise BadParameter(f"metadata has {len(metadata)} pairs; the limit is {MAX_PAIRS}", param="metadata")
    for name, value in metadata.items():
        if not name or len(name) > MAX_PAIR_KEY or len(value) > MAX_PAIR_VALUE or name.startswith(RESERVED):
            raise BadParameter(
                f"names in metadata have 1 to {MAX_PAIR_KEY} characters and do not begin with {RESERVED!r}; "
                f"values have at most {MAX_PAIR_VALUE} characters",
                param="metadata",
            )
    return metadata


def allowed_path(text: str, roots: Sequence[Path]) -> Path:
    """The path with its links resolved, if it lies below one of the folders.

    Raises the same `InvalidInput` for every other path, so that callers cannot learn which files exist.
    """
    if "\0" in text or "://" in text or any(letter in text for letter in "*?["):
        raise BadRequest("input must be the id of an uploaded file, or one plain path", hint="Upload it: POST /v1/files.")
    path = Path(text)
    resolved = path.resolve() if path.is_absolute() else None
    if resolved is None or not any(resolved.is_relative_to(root.resolve()) for root in roots):
        raise InvalidInput(
            "input is neither the id of one of your files nor a path below a folder that runs may read",
            errors=[{"pointer": "/input", "detail": "neither a file's id nor a path below one of the folders"}],
            hint="Upload the file (POST /v1/files), or ask for its folder to be listed in runs.roots.",
        )
    return resolved


def run_id_of(owner: str, key: str) -> str:
    """The id of the run that this owner creates under this idempotency key: the same key gives the same id."""
    number = int.from_bytes(hashlib.sha256(f"{owner}\0{key}".encode()).digest()[:17], "big") >> 6
    return "".join(_DIGITS[number >> shift & 31] for shift in range(125, -1, -5))


def key_of(header: str | None) -> str:
    """The idempotency key of a request with this header; empty without one."""
    return idempotency_key({} if header is None else {b"idempotency-key": header.encode("latin-1", "replace")})


def fingerprint(value: Any, first: str = "") -> str:
    """Equal for equal requests, under this tree and later ones. `first`: the members of an extension that it always has."""
    is_body = isinstance(value, Struct)
    text = lasting_json(value, f"{_FIRST} {first}") if is_body else msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(text).hexdigest()
