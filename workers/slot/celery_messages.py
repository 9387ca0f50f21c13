"""Stock Celery messages (`send_task("penstock.infer", args=[model, input])`, protocol 2, JSON) as penstock jobs. Pure.

Anybody who reaches the broker may put anything into a queue, so each part is read as a type of its own: what does not fit is
told to its sender, and nothing here raises.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Raw, Struct

from penstock import trace_context
from penstock.broker.records import NewJob
from penstock.job import MAX_DELAY_S, JobId, Payload, Priority
from penstock.model_spec import Limits, ModelInfo, ModelSpec

TASK = "penstock.infer"
_FOLLOW_UPS = ("chain", "chord", "callbacks", "errbacks")
# Celery's own ids have 36 characters. A longer one is not answered, because it becomes the name of a key.
_MAX_ID_CHARS = 255
_MAX_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that cannot become a job. `celery_id` is empty if even the id could not be read."""

    message: bytes
    celery_id: str
    reason: str


class _Unreadable(Exception):
    """A message cannot become a job; the text is the reason that its sender gets."""


class _Call(Struct, forbid_unknown_fields=True):
    """What a task asks for. The input stays as it was written: the model reads it, as it reads the body of a request."""

    model: str = ""
    input: Raw = Raw(b"")
    version: str | None = None
    priority: str | None = None
    deadline_s: float | None = None


# A part is decoded where it is needed, so that a bad one does not hide the id.
_Parts = Mapping[str, Raw]
_Body = tuple[list[Raw], dict[str, Raw] | None, dict[str, Raw] | None]
_objects = msgspec.json.Decoder(dict[str, Raw])
_bodies = msgspec.json.Decoder(_Body)
_values = msgspec.json.Decoder()
_UNREADABLE = (_Unreadable, msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


def job_from(message: bytes, id: JobId, *, spec: ModelSpec, info: ModelInfo, now: float) -> NewJob | Rejected:
    """The job that a message asks for. `now` is Unix seconds; the same message always gives the same idempotency key.

    `info` says which versions the model has, and which of them serves a caller who names none.
    """
    celery_id = ""
    try:
        envelope = _objects.decode(message)
        headers = _objects.decode(envelope.get("headers", b"{}"))
        celery_id = _celery_id(headers)
        _check_task(headers, celery_id)
        return _job(message, _call(_body(envelope)), headers, celery_id, id=id, spec=spec, info=info, now=now)
    except _UNREADABLE as error:
        return Rejected(message, celery_id, str(error)[:_MAX_REASON_CHARS])


def _job(
    message: bytes, call: _Call, headers: _Parts, celery_id: str, *, id: JobId, spec: ModelSpec, info: ModelInfo, now: float
) -> NewJob:
    if call.model != id.model:
        raise _Unreadable(f"this is the queue of the model {id.model!r}, but the task asks for {call.model[:80]!r}")
    priority, delay_s = _priority(call), _delay_s(headers, now)
    return NewJob(
        id=id,
        version=_version(call, info),
        input=Payload("application/json", bytes(call.input)),
        priority=priority,
        deadline_s=_deadline_s(call, headers, spec.limits, priority, delay_s=delay_s, now=now),
        delay_s=delay_s,
        result_ttl_s=spec.limits.result_ttl_s,
        idempotency_key=f"celery:{celery_id}",
        fingerprint=f"celery:{celery_id}",
        max_attempts=spec.limits.max_attempts,
        max_crashes=spec.limits.max_crashes,
        celery_id=celery_id,
        foreign=message,
        trace=_trace(headers),
    )


def _check_task(headers: _Parts, celery_id: str) -> None:
    task = _text(headers, "task")
    if task != TASK:
        raise _Unreadable(f"this queue takes tasks named {TASK!r}, not {task[:80]!r}")
    if not celery_id:
        raise _Unreadable(f"a task needs an id of 1 to {_MAX_ID_CHARS} characters")


def _celery_id(headers: _Parts) -> str:
    found = _text(headers, "id")
    return found if len(found) <= _MAX_ID_CHARS else ""


def _text(parts: _Parts, name: str) -> str:
    """The part if it is a text; empty if it is anything else, or is not there."""
    try:
        return msgspec.json.decode(parts.get(name, b'""'), type=str)
    except msgspec.MsgspecError:
        return ""


def _trace(headers: _Parts) -> str:
    """The trace that OpenTelemetry's instrumentation of Celery puts into a task's headers."""
    found = trace_context.read(_text(headers, "traceparent"), _text(headers, "tracestate"))
    return found.text if found else ""


def _body(envelope: _Parts) -> _Body:
    if _text(envelope, "content-type") != "application/json":
        raise _Unreadable("only the json serializer is accepted")
    body: str | bytes = _text(envelope, "body")
    if _text(_objects.decode(envelope.get("properties", b"{}")), "body_encoding") == "base64":
        body = base64.b64decode(body, validate=True)
    try:
        found: _Body = _bodies.decode(body)
    except msgspec.ValidationError as error:
        raise _Unreadable(f"only Celery's message protocol 2 is accepted: [args, kwargs, embed]; {error}") from error
    return found


def _call(body: _Body) -> _Call:
    args, kwargs, embed = body
    if len(args) > 2:
        raise _Unreadable(f"{TASK} takes args=[model, input]")
    if any(_values.decode((embed or {}).get(name, b"null")) for name in _FOLLOW_UPS):
        raise _Unreadable("chains, chords and callbacks are not supported; send the next task when this one has its result")
    given = {**dict(zip(("model", "input"), args, strict=False)), **(kwargs or {})}
    try:
        call = msgspec.json.decode(msgspec.json.encode(given), type=_Call)
    except msgspec.ValidationError as error:
        raise _Unreadable(f"{TASK} takes args=[model, input] and kwargs version, priority, deadline_s: {error}") from error
    if "input" not in given:
        raise _Unreadable(f"{TASK} takes args=[model, input]; got no input")
    return call


def _version(call: _Call, info: ModelInfo) -> str:
    # A version becomes a part of the names of keys: one that nobody announced may be the name of another owner's line.
    if call.version and call.version not in info.versions:
        raise _Unreadable(f"the model has no version {call.version[:80]!r}; its versions: {', '.join(info.versions)}")
    return call.version or info.default_version


def _priority(call: _Call) -> Priority:
    try:
        return Priority(call.priority or Priority.INTERACTIVE)
    except ValueError:
        raise _Unreadable(f"priority is 'interactive' or 'bulk', not {str(call.priority)[:80]!r}") from None


def _delay_s(headers: _Parts, now: float) -> float:
    """Seconds until the moment `eta`, which Celery makes of a `countdown` too."""
    eta = _moment(headers, "eta")
    if eta is not None and eta > now + MAX_DELAY_S:
        raise _Unreadable(f"eta lies {eta - now:.0f} s ahead; a job may start at most {MAX_DELAY_S:.0f} s after its submit")
    return 0.0 if eta is None else max(0.0, eta - now)


def _moment(headers: _Parts, name: str) -> float | None:
    """Unix seconds; None if the header is not there."""
    found = _values.decode(headers.get(name, b"null"))
    if not (found is None or isinstance(found, str)):
        raise _Unreadable(f"{name} is a moment as ISO 8601 writes it, which Celery makes of any {name} that it is given")
    return datetime.fromisoformat(found).timestamp() if found else None


def _deadline_s(call: _Call, headers: _Parts, limits: Limits, priority: Priority, *, delay_s: float, now: float) -> float:
    most = limits.deadline_s if priority is Priority.INTERACTIVE else limits.bulk_deadline_s
    wanted, expires = call.deadline_s, _moment(headers, "expires")
    if wanted is not None and not wanted > 0:
        raise _Unreadable(f"deadline_s is a number of seconds above 0, not {wanted!r}")
    ends = [most + delay_s, *([] if wanted is None else [wanted])]
    if expires is not None:
        ends.append(max(0.001, expires - now))
    if min(ends) <= delay_s:
        raise _Unreadable(f"the deadline comes before the start: {min(ends):.3f} s and {delay_s:.3f} s from now")
    return min(ends)
