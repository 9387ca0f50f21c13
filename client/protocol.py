"""Requests, answers and model inputs as values, and the meaning of answers. This module opens no sockets."""

from __future__ import annotations

import json
import mimetypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from penstock.client.problems import UnexpectedAnswer, error_from
from penstock.client.timelines import TimelineView, timeline_view
from penstock.client.views import JobView, job_view
from penstock.errors import BadRequest
from penstock.inputs.file import File
from penstock.outputs.bundle import MULTIPART, split_parts, with_files
from penstock.outputs.media import Media, filename_fault, type_fault

DEFAULT_URL = "http://127.0.0.1:8080"
JSON = "application/json"
BYTES = "application/octet-stream"
PROBLEM = "application/problem+json"
# The gateway holds a long poll for at most 30 s. Proxies that cut requests at 30 s need a little less.
LONGEST_POLL_S = 25.0
FILES = (Path, bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One HTTP request to be made. `url` is a path of the gateway or a link from one of its answers.

    `upload` is a file to be sent as a form instead of `content`. `wait_s` is how long the gateway may hold the answer.
    `repeatable`: a second request has no further effect. `patience_s`: how long after the first attempt an answer is still
    useful; None: always.
    """

    method: str
    url: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    upload: Path | None = None
    wait_s: float = 0.0
    repeatable: bool = True
    patience_s: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class InputBody:
    """A model's input as bytes with their media type."""

    content_type: str
    content: bytes


def base_url(given: str | None, env: Mapping[str, str] | None = None) -> str:
    """The gateway's address without a slash at the end: the given one, else PENSTOCK_URL, else the local default."""
    url = (given or (os.environ if env is None else env).get("PENSTOCK_URL") or DEFAULT_URL).rstrip("/")
    if urlsplit(url).scheme not in ("http", "https"):
        raise BadRequest(f"{url!r} is not a gateway address", hint=f"write it like {DEFAULT_URL} (PENSTOCK_URL or base_url)")
    return url


def resolve(base: str, link: str) -> str:
    """The absolute form of a path or link. It keeps the path of `base`, which may be the prefix of a proxy."""
    if "://" in link:
        return link
    prefix = urlsplit(base).path.rstrip("/")
    if prefix and (link == prefix or link.startswith(prefix + "/")):
        parts = urlsplit(base)
        return urlunsplit((parts.scheme, parts.netloc, "", "", "")) + link
    return f"{base}{link}"


def same_origin(base: str, url: str) -> bool:
    ours, theirs = urlsplit(base), urlsplit(url)
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)


def body_of(value: Any, content_type: str | None = None) -> InputBody:
    """The body for an input: bytes as they are, a Path as its file's bytes with a guessed media type, a dict with bytes, Paths
    or lists of them as a form, all else as JSON.

    Text is sent as it is if `content_type` is given and is not JSON. Raises `BadRequest` for a value that JSON cannot hold.
    """
    if isinstance(value, FILES):
        file = _file_of(value)
        return InputBody(content_type or file.content_type, bytes(file))
    if isinstance(value, dict) and content_type is None and not travels_as_json(value):
        return form_body([part for name, own in value.items() for part in _form_parts(str(name), own)])
    if isinstance(value, str) and content_type and not is_json(content_type):
        return InputBody(content_type, value.encode())
    return InputBody(content_type or JSON, json_bytes(value))


# A part of a form, as httpx2 takes it: its name; its file's name (None: a field), its bytes, and maybe its media type.
HttpPart = tuple[str, tuple[str | None, bytes] | tuple[str | None, bytes, str]]


def form_body(parts: Sequence[HttpPart]) -> InputBody:
    """The parts as a `multipart/form-data` body."""
    # Imported here, because most inputs are not forms. The library makes the boundary and the escapes.
    from httpx2 import Request

    form = Request("POST", DEFAULT_URL, files=list(parts))
    return InputBody(form.headers["content-type"], form.read())


def file_part(name: str, value: Path | bytes | bytearray | memoryview) -> HttpPart:
    file = _file_of(value)
    return name, (file.filename or name, bytes(file), file.content_type)


def _form_parts(name: str, value: Any) -> list[HttpPart]:
    """A file, or several as parts of one name; other values as JSON, so that no type is lost."""
    if isinstance(value, FILES):
        return [file_part(name, value)]
    if _has_files(value):
        return [file_part(name, own) for own in value]
    return [(name, (None, json_bytes(value), JSON))]


def travels_as_json(value: Any) -> bool:
    """Whether `body_of` writes the value as JSON: it is no file, and no dict with files."""
    return not (isinstance(value, FILES) or (isinstance(value, dict) and any(map(_has_files, value.values()))))


def _has_files(value: Any) -> bool:
    """Whether it is a file or a list of only files."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(own, FILES) for own in value)
    return isinstance(value, FILES)


def _file_of(value: Path | bytes | bytearray | memoryview) -> File:
    if isinstance(value, File):
        return value
    if isinstance(value, Path):
        return File(_file_bytes(value), mimetypes.guess_type(value.name)[0] or BYTES, value.name)
    return File(value, BYTES)


def is_json(media_type: str) -> bool:
    bare = media_type.partition(";")[0].strip().lower()
    return bare == JSON or bare.endswith("+json")


def row_of(value: Any) -> bytes:
    """The value as one line of JSON. Raises `BadRequest` for bytes and files, which JSON cannot hold."""
    if isinstance(value, FILES):
        raise BadRequest("many inputs are sent as JSON values; send bytes and files one by one with submit, or as a run")
    return json_bytes(value)


def check_window(in_flight: int) -> None:
    if in_flight < 1:
        raise BadRequest(f"in_flight must be at least 1, not {in_flight}")


def accepted(answer: Answer) -> Answer:
    """The same answer if its status is below 400. Raises the error that any other answer describes."""
    if answer.status < 400:
        return answer
    raise error_from(answer.status, answer.headers, answer.content)


def value_of(answer: Answer) -> Any:
    """A model's output: decoded JSON; bytes of unknown type; `Media` for any other media type, or with a name.

    For a bundle, the JSON with a `Media` in place of each file.
    """
    content_type, filename = answer.headers.get("content-type", ""), _filename_of(answer)
    if answer.media_type == MULTIPART:
        return _bundle_of(answer)
    if filename is None and is_json(content_type):
        return json_of(answer)
    if type_fault(content_type) or (filename is None and answer.media_type == BYTES):
        return answer.content
    return Media(answer.content, content_type, filename)


def _bundle_of(answer: Answer) -> Any:
    try:
        value, *files = split_parts(answer.content, answer.headers["content-type"].partition("boundary=")[2])
        return with_files(json.loads(value), files)
    except ValueError as fault:
        raise UnexpectedAnswer(f"the answer ({answer.status}, {MULTIPART}) cannot be read: {fault}") from fault


def _filename_of(answer: Answer) -> str | None:
    """The file's name in an answer, as the gateway writes it; None without a name, or for one with a path."""
    disposition = answer.headers.get("content-disposition", "")
    _, is_full, full = disposition.partition("filename*=UTF-8''")
    _, is_plain, plain = disposition.partition('filename="')
    name = unquote(full) if is_full else plain.partition('"')[0]
    return name if (is_full or is_plain) and not filename_fault(name) else None


def json_of(answer: Answer) -> Any:
    try:
        return json.loads(answer.content)
    except ValueError as fault:
        raise UnexpectedAnswer(f"the answer ({answer.status}, {answer.media_type or 'no media type'}) is not JSON") from fault


def object_of(answer: Answer) -> dict[str, Any]:
    body = json_of(accepted(answer))
    if not isinstance(body, dict):
        raise UnexpectedAnswer(f"the answer ({answer.status}) is JSON, but not an object")
    return body


def unready_why(answer: Answer) -> str:
    """What is missing according to a probe's answer; empty if the probe succeeded. Raises the error of any other refusal."""
    if answer.status != 503:
        accepted(answer)
        return ""
    body = json_of(answer)
    errors = body.get("errors") if isinstance(body, dict) else None
    parts = [": ".join(map(str, one.values())) for one in errors or () if isinstance(one, dict)]
    return "; ".join(parts) or str(body.get("detail") or "not ready")


def job_of(answer: Answer) -> JobView:
    return job_view(object_of(answer))


def timeline_of(answer: Answer) -> TimelineView:
    return timeline_view(object_of(answer))


def rows_of(answer: Answer) -> list[dict[str, Any]]:
    """The entries of a list answer (`{"data": [...]}`)."""
    rows = object_of(answer).get("data")
    if not isinstance(rows, list):
        raise UnexpectedAnswer(f"the answer ({answer.status}) has no list under 'data'")
    return rows


def next_page(answer: Answer) -> str | None:
    """The start of the next page; None after the last one. An empty page may not be the last, because filters drop rows."""
    page = object_of(answer)
    if not page.get("has_more"):
        return None
    rows = rows_of(answer)
    after = page.get("next_after") or (rows[-1].get("id") if rows else None)
    return after if isinstance(after, str) else None


def _file_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise BadRequest(f"cannot read the input file {path}: {fault.strerror}") from fault


def json_bytes(value: Any) -> bytes:
    """Compact JSON. Raises `BadRequest` for a value that JSON cannot hold."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as fault:
        raise BadRequest(f"the input does not fit JSON: {fault}", hint="send bytes with content_type=..., or a Path") from fault


def _plain(value: Any) -> Any:
    """The plain form of an array or array scalar, by `tolist`, which all array libraries have."""
    if callable(plain := getattr(value, "tolist", None)):
        return plain()
    raise TypeError(f"{type(value).__name__} has no JSON form")
