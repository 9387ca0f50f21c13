"""Stock Celery messages (`send_task("penstock.infer", args=[model, input])`, protocol 2, JSON) as penstock jobs. Pure."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from penstock import trace_context
from penstock.broker.records import NewJob
from penstock.job import JobId, Payload, Priority
from penstock.model_spec import Limits, ModelSpec

TASK = "penstock.infer"
_KNOWN = frozenset({"model", "input", "version", "priority", "deadline_s"})


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that cannot become a job. `celery_id` is empty if even the id could not be read."""

    message: bytes
    celery_id: str
    reason: str


class _Unreadable(Exception):
    """A message cannot become a job; the text is the reason that its sender gets."""


def job_from(message: bytes, id: JobId, *, spec: ModelSpec, default_version: str, now: float) -> NewJob | Rejected:
    """The job that a message asks for. `now` is Unix seconds; the same message always gives the same idempotency key."""
    celery_id = ""
    try:
        envelope = msgspec.json.decode(message)
        headers = _dict(_dict(envelope).get("headers"))
        celery_id = str(headers.get("id") or "")
        return _job(message, envelope, headers, id=id, spec=spec, default_version=default_version, now=now)
    except (_Unreadable, msgspec.DecodeError, binascii.Error, ValueError) as error:
        return Rejected(message, celery_id, str(error))


def _job(
    message: bytes,
    envelope: dict[str, Any],
    headers: dict[str, Any],
    *,
    id: JobId,
    spec: ModelSpec,
    default_version: str,
    now: float,
) -> NewJob:
    celery_id = str(headers.get("id") or "")
    if headers.get("task") != TASK or not celery_id:
        raise _Unreadable(f"this queue takes tasks named {TASK!r}, not {headers.get('task')!r}")
    call = _call(_body(envelope))
    if call.get("model") != id.model:
        raise _Unreadable(f"this is the queue of the model {id.model!r}, but the task asks for {call.get('model')!r}")
    priority = _priority(call)
    return NewJob(
        id=id,
        version=str(call.get("version") or default_version),
        input=Payload("application/json", msgspec.json.encode(call["input"])),
        priority=priority,
        deadline_s=_deadline_s(call, headers, spec.limits, priority, now),
        result_ttl_s=spec.limits.result_ttl_s,
        idempotency_key=f"celery:{celery_id}",
        fingerprint=f"celery:{celery_id}",
        max_attempts=spec.limits.max_attempts,
        max_crashes=spec.limits.max_crashes,
        celery_id=celery_id,
        foreign=message,
        trace=_trace(headers),
    )


def _trace(headers: dict[str, Any]) -> str:
    """The trace that OpenTelemetry's instrumentation of Celery puts into a task's headers."""
    found = trace_context.read(str(headers.get("traceparent") or ""), str(headers.get("tracestate") or ""))
    return found.text if found else ""


def _body(envelope: dict[str, Any]) -> list[Any]:
    body = envelope.get("body")
    if _dict(envelope.get("properties")).get("body_encoding") == "base64" and isinstance(body, str):
        body = base64.b64decode(body, validate=True)
    if envelope.get("content-type") != "application/json" or not isinstance(body, (str, bytes)):
        raise _Unreadable("only the json serializer is accepted")
    decoded = msgspec.json.decode(body)
    if not isinstance(decoded, list) or len(decoded) != 3:
        raise _Unreadable("only Celery's message protocol 2 is accepted")
    return decoded


def _call(body: list[Any]) -> dict[str, Any]:
    args, kwargs, embed = body
    if not isinstance(args, list) or len(args) > 2:
        raise _Unreadable(f"{TASK} takes args=[model, input]")
    if any(_dict(embed or {}).get(name) for name in ("chain", "chord", "callbacks", "errbacks")):
        raise _Unreadable("chains, chords and callbacks are not supported; send the next task when this one has its result")
    call = {**dict(zip(("model", "input"), args, strict=False)), **_dict(kwargs or {})}
    unknown = sorted(set(call) - _KNOWN)
    if unknown or "input" not in call:
        raise _Unreadable(
            f"{TASK} takes args=[model, input] and kwargs version, priority, deadline_s; got {', '.join(unknown) or 'no input'}"
        )
    return call


def _priority(call: dict[str, Any]) -> Priority:
    try:
        return Priority(call.get("priority") or Priority.INTERACTIVE)
    except ValueError:
        raise _Unreadable(f"priority is 'interactive' or 'bulk', not {call['priority']!r}") from None


def _deadline_s(call: dict[str, Any], headers: dict[str, Any], limits: Limits, priority: Priority, now: float) -> float:
    most = limits.deadline_s if priority is Priority.INTERACTIVE else limits.bulk_deadline_s
    wanted = call.get("deadline_s")
    if wanted is not None and not (isinstance(wanted, (int, float)) and wanted > 0):
        raise _Unreadable(f"deadline_s is a number of seconds above 0, not {wanted!r}")
    expires = headers.get("expires")
    ends = [most, *([float(wanted)] if wanted else [])]
    if isinstance(expires, str):
        ends.append(max(0.001, datetime.fromisoformat(expires).timestamp() - now))
    return min(ends)


def _dict(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Unreadable("the message is not a Celery task message")
    return value
