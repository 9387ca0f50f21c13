"""What a caller of Replicate's protocol sends: the body of a prediction, its headers, and the names of versions. Pure."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from penstock.errors import BadRequest, InvalidInput
from penstock.extensions.webhooks.webhook import AS_PREDICTION, ENDS
from penstock.gateway.asgi.negotiation import MAX_WAIT_S, parse_duration
from penstock.gateway.runs.request import read_body

# RFC 7240, and `wait` without a number, which Replicate takes for a minute.
_WAIT = re.compile(r"wait(?:\s*=\s*\"?(\d{1,9})\"?)?\s*(?:;.*)?", re.IGNORECASE)
_SHORTEST_CANCEL_S = 1.0


class PredictionRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a new prediction. `stream` says nothing here: a model that yields always has a stream."""

    input: dict[str, Any]
    version: str = ""
    stream: bool | None = None
    webhook: str | None = None
    webhook_completed: str | None = None
    webhook_events_filter: list[str] | None = None


def prediction_request(value: Any, *, needs_version: bool) -> PredictionRequest:
    """Raises `InvalidInput` with the place of the fault."""
    request = read_body(value, PredictionRequest)
    if needs_version != bool(request.version):
        raise InvalidInput(
            "the body has no version" if needs_version else "this path names the model; the body has no version",
            hint='For instance {"version": "MODEL:VERSION", "input": {...}}' if needs_version else None,
        )
    return request


# `start` and `output` have no event of their own: the prediction shows both with the next of the other two.
_LETTERS = {"start": "", "output": "", "logs": "p", "completed": ENDS}


def wanted_events(request: PredictionRequest) -> tuple[str, str]:
    """The URL, empty for none, and the letters of the events that it gets. Raises `InvalidInput` for an unknown event."""
    url = request.webhook or request.webhook_completed or ""
    events = ["completed"] if request.webhook_completed else request.webhook_events_filter
    return url, wanted_letters(url, events, AS_PREDICTION)


def wanted_letters(url: str, events: list[str] | None, body: str) -> str:
    """The letters of these events, None for all of them, and that of the body; empty without a URL. Raises `InvalidInput`."""
    events = list(_LETTERS) if events is None else events
    if wrong := [event for event in events if event not in _LETTERS]:
        raise InvalidInput(f"there is no event {wrong[0][:80]!r}", hint=f"webhook_events_filter takes {', '.join(_LETTERS)}.")
    letters = "".join(_LETTERS[event] for event in dict.fromkeys(events))
    if url and not letters:
        raise InvalidInput(
            "no event would be sent: `start` and `output` have none of their own",
            hint="Add completed or logs to webhook_events_filter.",
        )
    # A default URL of a key or a model gets events of our own.
    return letters + body if url else ""


def wait_s(prefer: str) -> float:
    """How long the answer to a create may wait, at most `MAX_WAIT_S`; 0: not at all."""
    for item in prefer.split(","):
        match = _WAIT.fullmatch(item.strip())
        if match is not None:
            return MAX_WAIT_S if match[1] is None else min(float(match[1]), MAX_WAIT_S)
    return 0.0


def cancel_after_s(text: str | None) -> float | None:
    """Seconds of a `Cancel-After` header: `90`, `90s`, `5m`, `1h30m`. Raises `BadRequest`."""
    if text is None:
        return None
    seconds = float(text) if re.fullmatch(r"\d{1,9}", text) else parse_duration(text)
    if seconds is None or seconds < _SHORTEST_CANCEL_S:
        raise BadRequest(f"Cancel-After {text[:40]!r} is not a duration of at least a second, such as 90s, 5m or 1h30m")
    return seconds


def split_version(text: str) -> tuple[str, str]:
    """The model and the version that `owner/model[:version]`, `model:version` or a bare word name.

    A bare word may be either: it comes back as the version, without a model.
    """
    _, slash, rest = text.rpartition("/")
    model, _, version = rest.partition(":")
    return ("", model) if not slash and not version else (model, version)


def in_words(error: InvalidInput) -> InvalidInput:
    """The same refusal with the place of each fault in its text, which is all that Replicate's clients show."""
    faults = [{**fault, "pointer": f"/input{fault['pointer']}"} for fault in error.errors]
    told = "; ".join(f"{fault['pointer']}: {fault['detail']}" for fault in faults)
    return InvalidInput(f"{error.message}: {told}" if told else error.message, errors=faults)
