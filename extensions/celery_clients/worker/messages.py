"""Stock Celery messages (`send_task("penstock.square", args=[input])`, protocol 2, JSON) as penstock jobs. Pure.

Any client of the broker can put anything into a queue, so each part is read as a type of its own. A part that does not fit is
reported to the sender, and nothing here raises.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Raw, Struct

from penstock import trace_context
from penstock.broker.records import NewJob
from penstock.extensions.celery_clients import ops as celery_ops
from penstock.extensions.celery_clients.ops import EXPIRED, INVALID_MESSAGE, Rejected, task_key
from penstock.extensions.celery_clients.worker.follow_ups import NotSendable, follow_ups, ids_of_chain
from penstock.job import MAX_DELAY_S, JobId, Payload, Priority
from penstock.model_spec import Limits, ModelInfo, ModelSpec

# A task of any model, `args=[model, input]`; a task of one model, `penstock.<model>`, takes `args=[input]`.
TASK, TASK_OF_MODEL = "penstock.infer", "penstock."
# Celery's own ids have 36 characters. A longer one is not answered, because it becomes the name of a key.
_MAX_ID_CHARS = 255
_MAX_REASON_CHARS = 300
_JSON, _BYTES = "application/json", "application/octet-stream"
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,60}/[a-z0-9][a-z0-9!#$&^_.+-]{0,60}")
_HEAD_BYTES = 64
_FIRST_BULK = 6


@dataclass(frozen=True, slots=True)
class DoorMessage:
    """A message at the door, and the name of the model that it asks for; there may be no such model."""

    message: bytes
    celery_id: str
    model: str


class _Unreadable(Exception):
    """A message cannot become a job; the text is the reason that its sender gets."""


class _Expired(_Unreadable):
    """The message came after its task had expired."""


class _Call(Struct, forbid_unknown_fields=True):
    """What a task asks for. The input stays as it was written: the model reads it, as it reads the body of a request."""

    model: str = ""
    input: Raw = Raw(b"")
    version: str | None = None
    priority: str | None = None
    deadline_s: float | None = None
    content_type: str | None = None


# A part is decoded where it is needed, so that a bad one does not hide the id.
_Parts = Mapping[str, Raw]
_Body = tuple[list[Raw], dict[str, Raw] | None, dict[str, Raw] | None]
_objects = msgspec.json.Decoder(dict[str, Raw])
_bodies = msgspec.json.Decoder(_Body)
_values = msgspec.json.Decoder()
_UNREADABLE = (_Unreadable, NotSendable, msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


def job_from(
    message: bytes, id: JobId, *, spec: ModelSpec, info: ModelInfo, now: float, may_send: Callable[[str], bool]
) -> NewJob | Rejected:
    """The job that a message asks for. `now` is Unix seconds; the same message always gives the same idempotency key.

    `info` has the versions of the model, and the one that serves callers who name no version. `may_send` tells whether the
    worker may write to a queue.
    """
    celery_id = ""
    try:
        envelope = _objects.decode(message)
        headers = _objects.decode(envelope.get("headers", b"{}"))
        celery_id = _celery_id(headers)
        _check_task(headers, celery_id)
        body, sent = _body(envelope), _sent_priority(envelope)
        call = _call(body, _text(headers, "task"))
        follows = _follows(body[2] or {}, headers, celery_id, may_send)
        return _job(message, call, headers, celery_id, sent, id=id, spec=spec, info=info, now=now, followed_by=follows)
    except _UNREADABLE as error:
        return _rejected(message, celery_id, error)


def _rejected(message: bytes, celery_id: str, error: Exception) -> Rejected:
    code = EXPIRED if isinstance(error, _Expired) else INVALID_MESSAGE
    return Rejected(message, celery_id, str(error)[:_MAX_REASON_CHARS], code, chain_of(message))


def chain_of(message: bytes) -> tuple[str, ...]:
    """The tasks that end with this one if it does not succeed; none if they cannot be read."""
    try:
        embed = _body(_objects.decode(message))[2] or {}
        return ids_of_chain({name: _values.decode(embed.get(name, b"null")) for name in ("chain", "chord")})
    except _UNREADABLE:
        return ()


def _follows(embed: _Parts, headers: _Parts, celery_id: str, may_send: Callable[[str], bool]) -> str:
    following = follow_ups(embed, id=celery_id, root=_text(headers, "root_id"))
    if following is None:
        return ""
    for queue in following.queues():
        if not may_send(queue):
            raise _Unreadable(f"penstock's workers may not write to the queue {queue[:80]!r}, where what follows would be sent")
    chain = ids_of_chain({"chain": _values.decode(embed.get("chain", b"null"))})
    return celery_ops.followed_by(chain, msgspec.json.encode(following).decode())


def asked_by(message: bytes) -> DoorMessage | Rejected:
    """The model that a message at the door asks for."""
    celery_id = ""
    try:
        envelope = _objects.decode(message)
        headers = _objects.decode(envelope.get("headers", b"{}"))
        celery_id = _celery_id(headers)
        _check_task(headers, celery_id)
        return DoorMessage(message, celery_id, _call(_body(envelope), _text(headers, "task")).model)
    except _UNREADABLE as error:
        return _rejected(message, celery_id, error)


def _job(
    message: bytes,
    call: _Call,
    headers: _Parts,
    celery_id: str,
    sent: int,
    *,
    id: JobId,
    spec: ModelSpec,
    info: ModelInfo,
    now: float,
    followed_by: str,
) -> NewJob:
    if call.model != id.model:
        raise _Unreadable(f"this is the queue of the model {id.model!r}, but the task asks for {call.model[:80]!r}")
    priority, delay_s = _priority(call, sent), _delay_s(headers, now)
    return NewJob(
        id=id,
        version=_version(call, info),
        input=_input(call),
        priority=priority,
        deadline_s=_deadline_s(call, headers, spec.limits, priority, delay_s=delay_s, now=now),
        delay_s=delay_s,
        result_ttl_s=spec.limits.result_ttl_s,
        idempotency_key=task_key(celery_id),
        fingerprint=task_key(celery_id),
        max_attempts=spec.limits.max_attempts,
        max_crashes=spec.limits.max_crashes,
        trace=_trace(headers),
        words=celery_ops.word_of(("" if _flag(headers, "ignore_result") else celery_id) + followed_by, message),
    )


def _check_task(headers: _Parts, celery_id: str) -> None:
    task = _text(headers, "task")
    if not task.startswith(TASK_OF_MODEL):
        raise _Unreadable(f"this queue takes tasks named {TASK!r} or 'penstock.<model>', not {task[:80]!r}")
    if not celery_id:
        raise _Unreadable(f"a task needs an id of 1 to {_MAX_ID_CHARS} characters, without a comma")
    if _text(headers, "compression"):
        raise _Unreadable("a compressed message is not accepted; leave out task_compression")
    if any(_values.decode(headers.get("timelimit", b"[]")) or ()):
        raise _Unreadable("a task has no time_limit: a run ends after the model's max_run_s; use expires or deadline_s")


def _flag(parts: _Parts, name: str) -> bool:
    return bytes(parts.get(name, b"")) == b"true"


def _celery_id(headers: _Parts) -> str:
    celery_id = _text(headers, "id")
    return celery_id if len(celery_id) <= _MAX_ID_CHARS and not {",", "\n"} & set(celery_id) else ""


def _text(parts: _Parts, name: str) -> str:
    """The part if it is a text; empty if it is anything else, or is not there."""
    try:
        return msgspec.json.decode(parts.get(name, b'""'), type=str)
    except msgspec.MsgspecError:
        return ""


def _trace(headers: _Parts) -> str:
    """The trace that OpenTelemetry's instrumentation of Celery puts into a task's headers."""
    trace = trace_context.read(_text(headers, "traceparent"), _text(headers, "tracestate"))
    return trace.text if trace else ""


def _body(envelope: _Parts) -> _Body:
    if _text(envelope, "content-type") != "application/json":
        raise _Unreadable("only the json serializer is accepted")
    body: str | bytes = _text(envelope, "body")
    if _text(_objects.decode(envelope.get("properties", b"{}")), "body_encoding") == "base64":
        body = base64.b64decode(body, validate=True)
    try:
        parts: _Body = _bodies.decode(body)
    except msgspec.ValidationError as error:
        raise _Unreadable(f"only Celery's message protocol 2 is accepted: [args, kwargs, embed]; {error}") from error
    return parts


def _call(body: _Body, task: str) -> _Call:
    args, kwargs, _ = body
    names, of_model = (("model", "input"), {}) if task == TASK else (("input",), {"model": task.removeprefix(TASK_OF_MODEL)})
    takes = f"{task[:80]} takes args=[{', '.join(names)}]"
    if len(args) > len(names):
        raise _Unreadable(takes)
    given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
    if of_model and "model" in given:
        raise _Unreadable(f"{takes}: its name says which model")
    try:
        call = _CALL.decode(msgspec.json.encode({**given, **of_model}))
    except msgspec.ValidationError as error:
        raise _Unreadable(f"{takes} and kwargs version, priority, deadline_s, content_type: {error}") from error
    if "input" not in given:
        raise _Unreadable(f"{takes}; got no input")
    return call


class _Typed(Struct, forbid_unknown_fields=True):
    """What kombu writes for a value that JSON does not have."""

    type: str = msgspec.field(name="__type__")
    value: str = msgspec.field(name="__value__")


# Made while one thread loads this module: D106.
_CALL, _TYPED = msgspec.json.Decoder(_Call), msgspec.json.Decoder(_Typed)


def _input(call: _Call) -> Payload:
    """The input as the body of a request would hold it: bytes as they are, everything else as JSON."""
    data = _bytes_of(bytes(call.input))
    if data is None and call.content_type not in (None, _JSON):
        raise _Unreadable(f"content_type {call.content_type[:80]!r} is that of bytes, and the input is JSON")
    if call.content_type is not None and not _MEDIA_TYPE.fullmatch(call.content_type):
        raise _Unreadable(f"content_type is a media type such as image/png, not {call.content_type[:80]!r}")
    return Payload(_JSON, bytes(call.input)) if data is None else Payload(call.content_type or _BYTES, data)


def _bytes_of(text: bytes) -> bytes | None:
    if b'"__type__"' not in text[:_HEAD_BYTES]:
        return None
    try:
        typed = _TYPED.decode(text)
    except msgspec.ValidationError:
        return None
    if typed.type == "bytes":
        return typed.value.encode()
    return base64.b64decode(typed.value, validate=True) if typed.type == "base64" else None


def _version(call: _Call, info: ModelInfo) -> str:
    # A version becomes part of key names: an unannounced one could be the name of another owner's line.
    if call.version and call.version not in info.versions:
        raise _Unreadable(f"the model has no version {call.version[:80]!r}; its versions: {', '.join(info.versions)}")
    return call.version or info.default_version


def _sent_priority(envelope: _Parts) -> int:
    """Celery's priority, 0 to 9. With Redis, 0 goes first."""
    priority = _values.decode(_objects.decode(envelope.get("properties", b"{}")).get("priority", b"0"))
    return priority if isinstance(priority, int) else 0


def _priority(call: _Call, sent: int) -> Priority:
    try:
        return Priority(call.priority or (Priority.BULK if sent >= _FIRST_BULK else Priority.INTERACTIVE))
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
    text = _values.decode(headers.get(name, b"null"))
    if not (text is None or isinstance(text, str)):
        raise _Unreadable(f"{name} is a moment as ISO 8601 writes it, which Celery makes of any {name} that it is given")
    return datetime.fromisoformat(text).timestamp() if text else None


def _deadline_s(call: _Call, headers: _Parts, limits: Limits, priority: Priority, *, delay_s: float, now: float) -> float:
    most = limits.deadline_s if priority is Priority.INTERACTIVE else limits.bulk_deadline_s
    wanted, expires = call.deadline_s, _moment(headers, "expires")
    if wanted is not None and not wanted > 0:
        raise _Unreadable(f"deadline_s is a number of seconds above 0, not {wanted!r}")
    ends = [most + delay_s, *([] if wanted is None else [wanted])]
    if expires is not None:
        if expires <= now:
            raise _Expired(f"the task expired {now - expires:.3f} s before a worker read it")
        ends.append(expires - now)
    if min(ends) <= delay_s:
        raise _Unreadable(f"the deadline comes before the start: {min(ends):.3f} s and {delay_s:.3f} s from now")
    return min(ends)
