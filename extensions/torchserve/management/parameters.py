"""What a caller of the management asks for: query parameters, or the same names in a JSON object. Pure.

As in TorchServe an integer that cannot be read counts as not given. A number that is out of range is refused before anything
is touched, which TorchServe does not do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.extensions.torchserve.gateway.errors import TorchServeError, bad_request
from penstock.model_spec import MAX_BATCH_SIZE

MOST_LISTED = 100
MOST_WORKERS = 1_024
MOST_MS = MOST_S = 86_400_000
_RUNTIMES = ("python", "python2", "python3")


@dataclass(frozen=True, slots=True)
class BatchingWish:
    """None: as it is. `max_batch_delay_ms` is in milliseconds."""

    batch_size: int | None = None
    max_batch_delay_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RegisterWish:
    """None: the archive's configuration says it, else a default does. Timeouts are in seconds."""

    url: str
    model_name: str = ""
    handler: str = ""
    batching: BatchingWish = BatchingWish()
    initial_workers: int | None = None
    synchronous: bool = True
    response_timeout_s: int | None = None
    startup_timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class ScaleWish:
    min_workers: int = 1
    max_workers: int = 1
    synchronous: bool = False
    batching: BatchingWish = BatchingWish()


@dataclass(frozen=True, slots=True)
class Page:
    limit: int = MOST_LISTED
    start: int = 0


def register_wish(given: Mapping[str, Any]) -> RegisterWish:
    """Raises `TorchServeError`: 400 without `url` or for a number out of range, 404 for an empty one."""
    if given.get("url") is None:
        raise bad_request("Parameter url is required.")
    url = _text(given, "url")
    if not url:
        raise TorchServeError(404, "ModelNotFoundException", "empty url")
    runtime = _text(given, "runtime") or "python"
    if runtime.lower() not in _RUNTIMES:
        raise bad_request(f"Invalid RuntimeType value: {runtime[:80]}")
    return RegisterWish(
        url=url,
        model_name=_text(given, "model_name"),
        handler=_text(given, "handler"),
        batching=_batching(given),
        initial_workers=_number(given, "initial_workers", least=0, most=MOST_WORKERS),
        synchronous=_flag(given, "synchronous", default=True),
        response_timeout_s=_number(given, "response_timeout", least=1, most=MOST_S),
        startup_timeout_s=_number(given, "startup_timeout", least=1, most=MOST_S),
    )


def scale_wish(given: Mapping[str, Any]) -> ScaleWish:
    """Raises `TorchServeError`, 400."""
    least = _number(given, "min_worker", least=0, most=MOST_WORKERS)
    most = _number(given, "max_worker", least=0, most=MOST_WORKERS)
    min_workers = 1 if least is None else least
    max_workers = min_workers if most is None else most
    if max_workers < min_workers:
        raise bad_request("max_worker cannot be less than min_worker.")
    return ScaleWish(min_workers, max_workers, _flag(given, "synchronous", default=False), _batching(given))


def batch_policy(wish: BatchingWish) -> dict[str, Any]:
    """The same as fields of our batch policy: only those that were given, in seconds."""
    delay_ms = wish.max_batch_delay_ms
    found = {"max_batch_size": wish.batch_size, "max_wait_s": None if delay_ms is None else delay_ms / 1_000}
    return {name: value for name, value in found.items() if value is not None}


def page_of(given: Mapping[str, Any]) -> Page:
    limit, start = _integer(given.get("limit")), _integer(given.get("next_page_token"))
    return Page(
        MOST_LISTED if limit is None or not 0 <= limit <= MOST_LISTED else limit, 0 if start is None or start < 0 else start
    )


def is_customized(given: Mapping[str, Any]) -> bool:
    return _flag(given, "customized", default=False)


def _batching(given: Mapping[str, Any]) -> BatchingWish:
    return BatchingWish(
        _number(given, "batch_size", least=1, most=MAX_BATCH_SIZE),
        _number(given, "max_batch_delay", least=0, most=MOST_MS),
    )


def _number(given: Mapping[str, Any], name: str, *, least: int, most: int) -> int | None:
    found = _integer(given.get(name))
    if found is not None and not least <= found <= most:
        raise bad_request(f"{name} is {found}; it can be {least} to {most}.")
    return found


def _integer(value: Any) -> int | None:
    """As TorchServe reads it: JSON may write a number as a text, and what is no whole number counts as not given."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return int(value) if not isinstance(value, float) or value.is_integer() else None
    except (ValueError, OverflowError):
        return None


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isprintable():
        raise bad_request(f"Parameter {name} must be a text.")
    return value


def _flag(given: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = given.get(name)
    return default if value is None else str(value).lower() == "true"
