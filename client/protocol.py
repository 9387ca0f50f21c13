"""What goes over the wire: the HTTP calls the client makes, as values, and what their answers mean. No sockets here."""

from __future__ import annotations

import json
import mimetypes
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from penstock.client.problems import UnexpectedAnswer, error_from
from penstock.client.timelines import TimelineView, timeline_view
from penstock.client.views import JobView, job_view
from penstock.errors import BadRequest
from penstock.job import Priority

DEFAULT_URL = "http://127.0.0.1:8080"
JSON = "application/json"
BYTES = "application/octet-stream"
# The gateway holds a long poll for at most 30 s; a little less leaves room for proxies that cut at 30.
LONGEST_POLL_S = 25.0


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One HTTP request to be made. `url` is a path of the gateway or a link it gave.

    `upload`: a file to be sent as a form instead of `content`.
    `wait_s` is how long the gateway may hold the answer back. `repeatable` says that sending it twice does no more than once.
    `patience_s` after the first attempt an answer is worth nothing to the caller; None: any answer is.
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
    """What came back. Header names are in lower case."""

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
    """The gateway's address: what the caller gave, else PENSTOCK_URL, else the local default; without a slash at the end."""
    url = (given or (os.environ if env is None else env).get("PENSTOCK_URL") or DEFAULT_URL).rstrip("/")
    if urlsplit(url).scheme not in ("http", "https"):
        raise BadRequest(f"{url!r} is not a gateway address", hint=f"write it like {DEFAULT_URL} (PENSTOCK_URL or base_url)")
    return url


def resolve(base: str, link: str) -> str:
    """The absolute form of a path or link, below the path that `base` may have (a proxy's prefix the gateway cannot know)."""
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
    """How an input travels: bytes as they are, a Path as its file's bytes with a guessed media type, all else as JSON.

    Text travels as it is when `content_type` is given and is not JSON. Raises `BadRequest` for what JSON cannot hold.
    """
    if isinstance(value, Path):
        guess = content_type or mimetypes.guess_type(value.name)[0] or BYTES
        return InputBody(guess, _file_bytes(value))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return InputBody(content_type or BYTES, bytes(value))
    if isinstance(value, str) and content_type and not is_json(content_type):
        return InputBody(content_type, value.encode())
    return InputBody(content_type or JSON, json_bytes(value))


def is_json(media_type: str) -> bool:
    bare = media_type.partition(";")[0].strip().lower()
    return bare == JSON or bare.endswith("+json")


def submit_call(
    model: str,
    body: InputBody,
    *,
    version: str | None = None,
    priority: Priority | str | None = None,
    deadline_s: float | None = None,
    idempotency_key: str | None = None,
) -> HttpCall:
    """Carries a key of its own when the caller gives none: repeating it after a lost answer cannot make a second job."""
    headers = {"content-type": body.content_type, "idempotency-key": idempotency_key or uuid.uuid4().hex}
    params = {"priority": str(priority)} if priority is not None else {}
    if deadline_s is not None:
        params["deadline_s"] = _seconds(deadline_s)
    path = f"/v1/models/{_part(model)}" + (f"/versions/{_part(version)}" if version else "") + "/jobs"
    return HttpCall("POST", path, params=params, headers=headers, content=body.content, patience_s=deadline_s)


def predict_call(model: str, body: InputBody, *, version: str | None = None, deadline_s: float | None = None) -> HttpCall:
    # The gateway holds this one until the model has run: the default of its own cap when the caller sets none.
    return HttpCall(
        "POST",
        f"/predictions/{_part(model)}" + (f"/{_part(version)}" if version else ""),
        params={"deadline_s": _seconds(deadline_s)} if deadline_s is not None else {},
        headers={"content-type": body.content_type},
        content=body.content,
        wait_s=deadline_s if deadline_s is not None else 60.0,
        repeatable=False,
        patience_s=deadline_s,
    )


def check_window(in_flight: int) -> None:
    if in_flight < 1:
        raise BadRequest(f"in_flight must be at least 1, not {in_flight}")


def job_call(job_id: str) -> HttpCall:
    return HttpCall("GET", f"/v1/jobs/{_part(job_id)}")


def poll_call(job: JobView, *, wait_s: float = 0.0) -> HttpCall:
    return _waiting("GET", job.links.get("self") or f"/v1/jobs/{_part(job.id)}", wait_s)


def result_call(job: JobView, *, wait_s: float = 0.0) -> HttpCall:
    return _waiting("GET", job.links.get("result") or f"/v1/jobs/{_part(job.id)}/result", wait_s)


def timeline_call(job_id: str) -> HttpCall:
    return HttpCall("GET", f"/v1/jobs/{_part(job_id)}/timeline")


def cancel_call(job: JobView) -> HttpCall:
    return HttpCall("POST", job.links.get("cancel") or f"/v1/jobs/{_part(job.id)}/cancel")


def replay_call(job: JobView, *, version: str | None = None, idempotency_key: str | None = None) -> HttpCall:
    """Carries a key of its own when the caller gives none, as a submit does."""
    return HttpCall(
        "POST",
        job.links.get("replay") or f"/v1/jobs/{_part(job.id)}/replay",
        params={"version": version} if version else {},
        headers={"idempotency-key": idempotency_key or uuid.uuid4().hex},
    )


def page_call(*, model: str | None, status: str | None, after: str | None, limit: int) -> HttpCall:
    wanted = {"model": model, "status": status, "after": after}
    params = {name: value for name, value in wanted.items() if value}
    return HttpCall("GET", "/v1/jobs", params={**params, "limit": str(limit)})


def models_call() -> HttpCall:
    return HttpCall("GET", "/v1/models")


def workers_call() -> HttpCall:
    return HttpCall("GET", "/v1/workers")


def accepted(answer: Answer) -> Answer:
    """The same answer, or the error it tells of."""
    if answer.status < 400:
        return answer
    raise error_from(answer.status, answer.headers, answer.content)


def value_of(answer: Answer) -> Any:
    """A model's output: decoded JSON, or the bytes of any other media type."""
    return json_of(answer) if is_json(answer.media_type) else answer.content


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
    """Where the list goes on; None at its end. A page may be empty and still not be the last: filters drop rows."""
    page = object_of(answer)
    if not page.get("has_more"):
        return None
    rows = rows_of(answer)
    after = page.get("next_after") or (rows[-1].get("id") if rows else None)
    return after if isinstance(after, str) else None


def _waiting(method: str, url: str, wait_s: float) -> HttpCall:
    # A poll shorter than the longest one ends with the caller's own timeout.
    patience_s = wait_s if 0.0 < wait_s < LONGEST_POLL_S else None
    return HttpCall(method, url, params={"wait": _seconds(wait_s)} if wait_s > 0 else {}, wait_s=wait_s, patience_s=patience_s)


def _part(text: str) -> str:
    return quote(text, safe="")


def _seconds(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _file_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise BadRequest(f"cannot read the input file {path}: {fault.strerror}") from fault


def json_bytes(value: Any) -> bytes:
    """Compact JSON; raises `BadRequest` for what it cannot hold."""
    try:
        return json.dumps(value, default=_plain, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()
    except (TypeError, ValueError) as fault:
        raise BadRequest(f"the input does not fit JSON: {fault}", hint="send bytes with content_type=..., or a Path") from fault


def _plain(value: Any) -> Any:
    """Arrays and array scalars of any library tell their plain form by `tolist`."""
    if callable(plain := getattr(value, "tolist", None)):
        return plain()
    raise TypeError(f"{type(value).__name__} has no JSON form")
