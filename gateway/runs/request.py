"""What a caller asks a run to do over HTTP, read and checked: its members, its durations, the paths it may name. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from penstock.errors import BadParameter, BadRequest, InvalidInput

T = TypeVar("T", bound=Struct)

MAX_PAIRS, MAX_PAIR_KEY, MAX_PAIR_VALUE = 16, 64, 512
LONGEST_WINDOW_S = 30 * 86_400.0
# Of a run's metadata: names that are ours and that no caller sees or sets.
OURS = "penstock:"
_PARTS = re.compile(r"(\d{1,9})(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"


class RunRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/runs. `input` is the id of an uploaded file, or a path below one of `runs.roots`."""

    model: str
    input: str
    version: str = ""
    input_format: str = ""
    output_format: str = "jsonl"
    columns: dict[str, str] = {}
    carry: list[str] = []
    max_failed: int | None = None
    shard_rows: int = 0
    deadline_s: float = 0.0
    metadata: dict[str, str] = {}


class ExpiresAfter(Struct, forbid_unknown_fields=True):
    anchor: str
    seconds: int


class BatchRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


def read_body(value: Any, kind: type[T]) -> T:
    """Raises `InvalidInput` that says which member is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as fault:
        what, _, where = str(fault).partition(" - at ")
        pointer = where.strip("`").removeprefix("$").replace(".", "/")
        raise InvalidInput(what, errors=[{"pointer": pointer, "detail": what}]) from None


def check_metadata(given: dict[str, str]) -> dict[str, str]:
    """The same; raises `BadParameter` for more than 16 pairs, long ones, and names that are ours."""
    if len(given) > MAX_PAIRS:
        raise BadParameter(f"metadata has {len(given)} pairs; the limit is {MAX_PAIRS}", param="metadata")
    for name, value in given.items():
        if not name or len(name) > MAX_PAIR_KEY or len(value) > MAX_PAIR_VALUE or name.startswith(OURS):
            raise BadParameter(
                f"metadata has names of 1 to {MAX_PAIR_KEY} characters, none beginning with {OURS!r}, "
                f"and values of at most {MAX_PAIR_VALUE}",
                param="metadata",
            )
    return given


def window_s(text: str) -> float:
    """Seconds of `90s`, `10m`, `24h`, `7d` or several of these in a row."""
    parts = _PARTS.findall(text)
    total = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not 0.0 < total <= LONGEST_WINDOW_S:
        raise BadParameter(
            f"completion_window {text[:40]!r} is no duration from 1s to 30d; write it like 24h or 10m",
            param="completion_window",
        )
    return total


def allowed_path(given: str, roots: Sequence[Path]) -> Path:
    """The path, links resolved, if it lies below one of the folders; raises `InvalidInput` for every other one alike."""
    if "\0" in given or "://" in given or any(letter in given for letter in "*?["):
        raise BadRequest("input is the id of an uploaded file, or one plain path", hint="Upload it: POST /v1/files.")
    path = Path(given)
    resolved = path.resolve() if path.is_absolute() else None
    if resolved is None or not any(resolved.is_relative_to(root.resolve()) for root in roots):
        raise InvalidInput(
            "input is neither the id of a file of yours nor a path below a folder that runs may read",
            errors=[{"pointer": "/input", "detail": "not a file's id, and below none of the folders"}],
            hint="Upload the file (POST /v1/files), or have its folder listed in runs.roots.",
        )
    return resolved


def run_id_of(owner: str, key: str) -> str:
    """The id of the run that this owner makes under this idempotency key: always the same one."""
    number = int.from_bytes(hashlib.sha256(f"{owner}\0{key}".encode()).digest()[:17], "big") >> 6
    return "".join(_DIGITS[number >> shift & 31] for shift in range(125, -1, -5))


def fingerprint(value: Any) -> str:
    """Equal for equal requests, whatever the order of their members."""
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()
