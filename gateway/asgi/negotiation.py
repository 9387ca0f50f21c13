"""What a request asks for besides its body: path, headers, media types, Prefer, query options. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl

from msgspec import Struct

from penstock import trace_context
from penstock.errors import BadRequest, CallerError, UnsupportedMedia
from penstock.job import CHARSETS, FORM_MEDIA, TENSORS_MEDIA, is_media_accepted, split_media_type
from penstock.trace_context import TraceContext

MAX_HEADERS = 100
MAX_HEADER_BYTES = 16 * 1024
MAX_TARGET_BYTES = 8 * 1024
MAX_WAIT_S = 30.0
PREDICT = "/predictions/"
EXPLAIN = "/explanations/"
_MODELS = "/v1/models/"
_VERSIONS = "versions/"
_JOBS = "/jobs"
JSON = "application/json"
MULTIPART = "multipart/form-data"
OCTETS = "application/octet-stream"
_FORM = "application/x-www-form-urlencoded"
# Types that penstock packs itself and does not accept from callers.
_OURS = frozenset({FORM_MEDIA, TENSORS_MEDIA})
_KEY = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?")
_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]*\]|[^:@/\[\]]*)(?::\d{0,5})?")
_DURATION = re.compile(r"(\d{1,9}+)([smhd])")
_UNIX_SECONDS = re.compile(r"\d{1,11}(\.\d{1,9})?")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_WAIT = re.compile(r"wait\s*=\s*\"?(\d{1,9})\"?\s*(?:;|$)")

Head = dict[bytes, bytes]
_TRACE_PARENT, _TRACE_STATE = b"traceparent", b"tracestate"
_ORIGIN, _FETCH_SITE = b"origin", b"sec-fetch-site"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_WANTED = frozenset(
    {
        b"host",
        b"accept",
        b"authorization",
        b"content-type",
        b"content-length",
        b"transfer-encoding",
        b"content-encoding",
        b"idempotency-key",
        b"prefer",
        b"x-request-id",
        _ORIGIN,
        _FETCH_SITE,
        _TRACE_PARENT,
        _TRACE_STATE,
    }
)


class HeadersTooLarge(CallerError):
    kind = "headers_too_large"


def read_head(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """The headers that the gateway reads, by their lower-case names; raises `HeadersTooLarge` over 100 headers or 16 KiB."""
    head: Head = {}
    count = size = 0
    for name, value in headers:
        count += 1
        size += len(name) + len(value)
        if name in _WANTED:
            head[name] = value if name not in head else head[name] + b", " + value
    if count > MAX_HEADERS or size > MAX_HEADER_BYTES:
        raise HeadersTooLarge(
            f"{count} headers of {size} bytes in all; the limits are {MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes",
            hint="Send fewer or shorter headers; options of a job are query parameters.",
        )
    return head


def caller_trace(head: Mapping[bytes, bytes]) -> TraceContext | None:
    """The caller's W3C trace context; None if it sent none, or one that cannot be read."""
    parent = head.get(_TRACE_PARENT)
    if parent is None:
        return None
    return trace_context.read(parent.decode("latin-1"), head.get(_TRACE_STATE, b"").decode("latin-1"))


def caller_trace_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """As `caller_trace`, for a request that was refused before its headers were read."""
    return caller_trace({name: value for name, value in headers if name in (_TRACE_PARENT, _TRACE_STATE)})


def trace_header(trace: TraceContext | None) -> list[tuple[bytes, bytes]]:
    """The response header with the trace's id."""
    return [] if trace is None else [(_TRACE_PARENT, trace.parent.encode("ascii"))]


def host_name(host: bytes) -> str:
    """The name in a Host header, without its port; empty if the header is anything but a name and a port."""
    match = _HOST.fullmatch(host)
    return match[1].decode("latin-1").lower() if match else ""


def is_cross_site(head: Head, allowed: Collection[str] = ()) -> bool:
    """Whether a browser sent this for a page that is neither ours nor of an `allowed` origin.

    No script can set `Sec-Fetch-Site`, and browsers send it over https and on loopback. Elsewhere they send an `Origin` with
    every request that changes something, and that must be ours. Programs send neither.
    """
    origin, site = head.get(_ORIGIN), head.get(_FETCH_SITE)
    if origin is None and site is None:
        return False
    if origin is not None and origin.decode("latin-1") in allowed:
        return False
    if site is not None:
        return site not in (b"same-origin", b"none")
    return (origin or b"").partition(b"://")[2] != head.get(b"host")


class SubmitTarget(Struct, frozen=True):
    """The endpoint, model and version that a path names. `route` is the path's template, as metrics show it."""

    route: str
    model: str
    version: str


def parse_submit_target(path: str) -> SubmitTarget | None:
    """The target of a path of the submit families, None for every other path; string operations only, as every request pays."""
    for family in (PREDICT, EXPLAIN):
        if path.startswith(family):
            return _answer_target(family, path[len(family) :])
    if path.startswith(_MODELS) and path.endswith(_JOBS):
        return _jobs_target(path[len(_MODELS) : -len(_JOBS)])
    return None


def _answer_target(family: str, rest: str) -> SubmitTarget | None:
    model, slash, version = rest.partition("/")
    if not model or (slash and not version) or "/" in version:
        return None
    return SubmitTarget(f"{family}{{model}}/{{version}}" if slash else f"{family}{{model}}", model, version)


def _jobs_target(middle: str) -> SubmitTarget | None:
    model, slash, rest = middle.partition("/")
    version = rest[len(_VERSIONS) :] if rest.startswith(_VERSIONS) else ""
    if not model or (slash and not version) or "/" in version:
        return None
    return SubmitTarget("/v1/models/{model}/versions/{version}/jobs" if slash else "/v1/models/{model}/jobs", model, version)


def refuse_unknown(names: Iterable[str], known: Sequence[str]) -> None:
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise BadRequest(f"unknown query parameter {unknown[:80]!r}; this path takes {', '.join(known) or 'none'}")


def parse_query(query: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32))
    except ValueError as error:
        raise BadRequest("the query string cannot be read; write name=value pairs joined by &") from error


def parse_seconds(text: str, *, name: str) -> float:
    """A positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0.0:
        raise BadRequest(f"{name} must be a positive number of seconds, not {text[:80]!r}")
    return value


def parse_moment(text: str, *, name: str) -> float:
    """Unix seconds from a number or an RFC 3339 date; raises `BadRequest`."""
    try:
        # An unescaped plus sign in a query arrives as a space.
        return float(text) if _UNIX_SECONDS.fullmatch(text) else _rfc3339(text.replace(" ", "+"))
    except (ValueError, OverflowError):
        raise BadRequest(
            f"{name} must be a moment with its offset from UTC, or Unix seconds, not {text[:80]!r}",
            hint=f"For instance {name}=2026-12-24T18:00:00Z",
        ) from None


def _rfc3339(text: str) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a moment without an offset")
    return moment.timestamp()


def parse_duration(text: str) -> float | None:
    """The seconds of `90s`, `10m`, `24h`, `7d`, or of several such parts in a row; None for anything else."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * _UNIT_S[unit] for number, unit in parts)


def parse_wait(text: str | None) -> float:
    """How many seconds a long poll may take: 0 if the caller sent none, at most 30."""
    if text is None or text == "0":
        return 0.0
    return min(parse_seconds(text, name="wait"), MAX_WAIT_S)


@dataclass(frozen=True, slots=True)
class Preference:
    """A Prefer header (RFC 7240). `wait_s` 0: answer at once; `applied` is the Preference-Applied header, empty for none."""

    wait_s: float = 0.0
    applied: bytes = b""


_NO_PREFERENCE = Preference()


def parse_preference(value: bytes | None) -> Preference:
    """The preferences that the gateway honours. The standard says to ignore the others."""
    if not value:
        return _NO_PREFERENCE
    items = [item.strip().lower() for item in value.decode("latin-1").split(",")]
    waits = [int(match[1]) for item in items if (match := _WAIT.match(item))]
    wait_s = min(waits[0], int(MAX_WAIT_S)) if waits else 0
    applied = ["respond-async"] if "respond-async" in items else []
    applied += [f"wait={wait_s}"] if waits else []
    return Preference(float(wait_s), ", ".join(applied).encode("ascii"))


def idempotency_key(head: Head) -> str:
    """The key, empty if none was sent; raises `BadRequest` unless it is 1 to 255 printable ASCII characters."""
    value = head.get(b"idempotency-key")
    if value is None:
        return ""
    key = value.decode("latin-1")
    if not _KEY.fullmatch(key):
        raise BadRequest("Idempotency-Key must be 1 to 255 printable ASCII characters")
    return key


def refuse_encoded(head: Head) -> None:
    if b"content-encoding" not in head:
        return
    encoding = head[b"content-encoding"].strip().lower()
    if encoding != b"identity":
        raise UnsupportedMedia(
            f"Content-Encoding {encoding[:40].decode('latin-1')!r} is not supported on this path",
            hint="Send the body uncompressed.",
        )


def require_json(head: Head) -> None:
    """Raises `UnsupportedMedia` unless the body is declared as JSON. A page may send some other types without a preflight."""
    media = base_type(head.get(b"content-type", b"").decode("latin-1"))
    if media != JSON:
        given = f"not {media[:80]!r}" if media else "and the request has no Content-Type"
        raise UnsupportedMedia(f"this path accepts only {JSON}, {given}", hint="Add the header content-type: application/json.")


def media_type(content_type: bytes | None, *, accepts: tuple[str, ...]) -> str:
    """The full media type of a request's body; without a Content-Type, JSON unless the model lists raw bytes before JSON.

    Raises `UnsupportedMedia` for a type that the model does not accept, and for a text in a charset that no model can read.
    Multipart always passes: its parts are checked later.
    """
    if content_type is None:
        return JSON if not accepts or JSON in accepts[: _index(OCTETS, accepts)] else OCTETS
    if content_type == b"application/json" and (not accepts or JSON in accepts):
        return JSON
    full = content_type.decode("latin-1").strip()
    base = base_type(full)
    if base == MULTIPART or (is_accepted(base, accepts) and base not in _OURS):
        _check_charset(full, base, accepts)
        return full if base != JSON else JSON
    raise UnsupportedMedia(
        f"Content-Type {base[:80]!r} is not accepted by this model; it accepts {', '.join(accepts) or 'any but forms'}",
        hint="curl -d sends a form by default: add -H 'content-type: application/json'." if base == _FORM else None,
    )


def _check_charset(full: str, base: str, accepts: tuple[str, ...]) -> None:
    # A model that takes bytes accepts any type.
    if base.startswith("text/") and "*/*" not in accepts and split_media_type(full)[1] not in CHARSETS:
        raise UnsupportedMedia(
            f"texts in the charset {split_media_type(full)[1][:40]!r} are not read", hint=f"Send one of {', '.join(CHARSETS)}."
        )


def _index(media: str, accepts: tuple[str, ...]) -> int:
    return accepts.index(media) if media in accepts else len(accepts)


def base_type(media: str) -> str:
    return media.partition(";")[0].strip().lower()


def is_accepted(base: str, accepts: tuple[str, ...]) -> bool:
    """Whether a model accepts this media type. `accepts` may hold `image/*` and `*/*`; if it is empty, all but forms pass."""
    if not accepts:
        return base != _FORM
    return is_media_accepted(base, accepts)


def is_streamed(accept: bytes) -> bool:
    """Whether the header asks for events instead of one answer."""
    return b"event-stream" in accept or b"ndjson" in accept
