"""The schemas of a job and of its timeline in the OpenAPI document; `views` builds what they describe."""

from __future__ import annotations

from typing import Any

from penstock.extension import installed
from penstock.gateway.jobs.timeline import STAGES
from penstock.job import MAX_DELAY_S, PUBLIC_STATES

_TEXT = {"type": "string"}
_MAYBE_TEXT = {"type": ["string", "null"]}
_MOMENT = {"type": "string", "format": "date-time"}
_MAYBE_MOMENT = {"type": ["string", "null"], "format": "date-time"}
# The query parameters of every submit, and those of submits that do not wait for the output.
ANSWER_PARAMETERS: list[dict[str, Any]] = [
    {"name": "priority", "in": "query", "schema": {"type": "string", "enum": ["interactive", "bulk"]}},
    {
        "name": "deadline_s",
        "in": "query",
        "description": "The job must end within this many seconds of its submit",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    {
        "name": "tags",
        "in": "query",
        "description": "Up to 8 words, joined by commas, by which the job is found",
        "schema": _TEXT,
    },
    *({"name": name, "in": "query", **read} for one in installed() for name, read in one.parameters.items()),
]
JOB_PARAMETERS: list[dict[str, Any]] = [
    *ANSWER_PARAMETERS,
    {
        "name": "delay_s",
        "in": "query",
        "description": "The job does not run before this many seconds have passed",
        "schema": {"type": "number", "minimum": 0, "maximum": MAX_DELAY_S},
    },
    {
        "name": "not_before",
        "in": "query",
        "description": "The moment before which the job does not run: RFC 3339, or Unix seconds",
        "schema": _TEXT,
    },
]
JOB_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "model", "version", "status", "links"],
    "properties": {
        "id": _TEXT,
        "model": _TEXT,
        "version": _TEXT,
        "status": {"type": "string", "enum": list(PUBLIC_STATES)},
        "priority": {"type": "string", "enum": ["interactive", "bulk"]},
        "position": {
            "type": "integer",
            "description": "Jobs of the same owner before this one in the queue; an estimate",
        },
        "eta_s": {"type": "number", "description": "Seconds until the job has probably run; an estimate"},
        "created_at": _MOMENT,
        "started_at": _MOMENT,
        "finished_at": _MOMENT,
        "not_before": {**_MOMENT, "description": "The moment before which the job does not run, if its submit named one"},
        "deadline_at": _MOMENT,
        "attempts": {"type": "integer"},
        "progress": {
            "type": "object",
            "description": "What its handler said last of how far it is",
            "properties": {"fraction": {"type": "number", "minimum": 0, "maximum": 1}, "note": _TEXT, "at": _MOMENT},
        },
        "cancel_requested": {"type": "boolean"},
        "tags": {"type": "array", "items": _TEXT},
        "error": {"type": "object", "properties": {"code": _TEXT, "message": _TEXT, "retryable": {"type": "boolean"}}},
        "batch": {"type": "object"},
        "trace_id": {"type": "string", "description": "The W3C trace of its submit"},
        "replay_of": {"type": "string", "description": "The job whose input this one repeats"},
        "replayed_as": {"type": "string", "description": "The job that repeats this one's input; the last of several"},
        "links": {"type": "object", "additionalProperties": _TEXT},
    },
}
_ENDS = [*PUBLIC_STATES[2:], "released", "retried", "crashed", "worker_lost", None]
_STAGE = {
    "type": "object",
    "required": ["name", "seconds", "share", "note"],
    "properties": {
        "name": {"type": "string", "enum": list(STAGES)},
        "seconds": {"type": "number"},
        "share": {"type": "number", "minimum": 0, "maximum": 1},
        "note": _MAYBE_TEXT,
    },
}
_ATTEMPT = {
    "type": "object",
    "required": ["attempt", "worker", "claimed_at", "ended_at", "end", "batch"],
    "properties": {
        "attempt": {
            "type": "integer",
            "description": "Number of the claim, from 1; attempts_left_out counts unlisted ones",
        },
        "worker": _TEXT,
        "claimed_at": _MOMENT,
        "ended_at": _MAYBE_MOMENT,
        "end": {"type": ["string", "null"], "enum": _ENDS},
        "batch": _TEXT,
    },
}
_BATCH = {
    "type": ["object", "null"],
    "properties": {
        "id": _TEXT,
        "size": {"type": "integer"},
        "place": {"type": "integer", "description": "From 1"},
        "reason": _TEXT,
        "device": _MAYBE_TEXT,
        "provider": _MAYBE_TEXT,
    },
}
TIMELINE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "status", "total_s", "queued_behind", "stages", "attempts", "batch", "slowest", "summary", "trace_id"],
    "properties": {
        "id": _TEXT,
        "model": _TEXT,
        "version": _TEXT,
        "status": {"type": "string", "enum": list(PUBLIC_STATES)},
        "created_at": _MOMENT,
        "finished_at": _MAYBE_MOMENT,
        "total_s": {"type": "number", "description": "The sum of the stages"},
        "queued_behind": {"type": "integer"},
        "stages": {"type": "array", "items": _STAGE},
        "attempts": {"type": "array", "items": _ATTEMPT},
        "attempts_left_out": {"type": "integer"},
        "batch": _BATCH,
        "slowest": {"type": "string", "enum": list(STAGES)},
        "summary": _TEXT,
        "trace_id": _MAYBE_TEXT,
    },
}
