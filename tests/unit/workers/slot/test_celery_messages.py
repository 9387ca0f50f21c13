from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery

from penstock.broker.records import NewJob
from penstock.job import JobId, Priority
from penstock.model_spec import ModelSpec
from penstock.workers.slot.celery_messages import Rejected, job_from

SPEC = ModelSpec("square", "square.py", version="2")
ID = JobId("0" * 26, "square")
NOW = 1_800_000_000.0


def message(name: str = "penstock.infer", *, args: Any = ("square", 4), kwargs: Any = None, **options: Any) -> bytes:
    """Return the message that an ordinary Celery client of the installed release puts into the Redis list."""
    with Celery("client", broker="memory://", set_as_current=False) as app, app.connection_for_write() as connection:
        queue = app.amqp.queues.select_add("penstock.{square}")
        app.send_task(name, args=args, kwargs=kwargs, queue=queue, connection=connection, task_id="task-1", **options)
        return json.dumps(connection.default_channel._get("penstock.{square}")).encode()


def read(raw: bytes) -> NewJob | Rejected:
    return job_from(raw, ID, spec=SPEC, default_version="1", now=NOW)


def accepted(raw: bytes) -> NewJob:
    job = read(raw)
    assert isinstance(job, NewJob), job
    return job


def test_a_task_becomes_a_job_that_remembers_who_asked() -> None:
    raw = message(args=["square", {"x": 4}])
    job = accepted(raw)
    assert job.input.data == b'{"x":4}'
    assert (job.id, job.version, job.priority) == (ID, "1", Priority.INTERACTIVE)
    assert (job.celery_id, job.idempotency_key, job.foreign) == ("task-1", "celery:task-1", raw)


def test_keyword_arguments_choose_version_priority_and_deadline() -> None:
    job = accepted(message(kwargs={"version": "2", "priority": "bulk", "deadline_s": 5}))
    assert (job.version, job.priority, job.deadline_s) == ("2", Priority.BULK, 5.0)


def test_celerys_expiry_is_the_jobs_deadline() -> None:
    job = accepted(message(expires="2027-01-15T08:01:40+00:00"))
    assert job.deadline_s == 100.0


def test_no_task_outlives_the_models_own_limit() -> None:
    assert accepted(message(kwargs={"deadline_s": 1e9})).deadline_s == SPEC.limits.deadline_s


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (lambda: message("other.task"), "takes tasks named 'penstock.infer'"),
        (lambda: message(args=["cube", 4]), "the task asks for 'cube'"),
        (lambda: message(args=["square"]), "no input"),
        (lambda: message(kwargs={"verzion": "2"}), "verzion"),
        (lambda: message(kwargs={"priority": "high"}), "'interactive' or 'bulk'"),
        (lambda: message(kwargs={"deadline_s": -1}), "above 0"),
        (lambda: message(chain=[{"task": "next"}]), "chains"),
    ],
)
def test_what_cannot_become_a_job_is_answered_with_the_reason(raw: Any, reason: str) -> None:
    rejected = read(raw())
    assert isinstance(rejected, Rejected)
    assert rejected.celery_id == "task-1"
    assert reason in rejected.reason


@pytest.mark.parametrize("raw", [b"", b"\x80\x04pickle", b"[]", b"{}", b'{"headers": 1}', b'{"headers": {"id": null}}'])
def test_what_is_no_celery_message_at_all_is_rejected_without_an_id(raw: bytes) -> None:
    rejected = read(raw)
    assert isinstance(rejected, Rejected)
    assert rejected.celery_id == ""
