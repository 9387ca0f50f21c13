from __future__ import annotations

import json

import pytest

from penstock.errors import TooLarge
from penstock.extensions.celery_clients.ops import AnsweredTask
from penstock.extensions.celery_clients.worker.clients import answers
from penstock.job import Job, JobState, Payload, Priority, new_job_id

JOB = Job(new_job_id("m"), JobState.SUCCEEDED, "1", Priority.INTERACTIVE, created_at=1.0, deadline_at=2.0)


@pytest.mark.parametrize(
    ("output", "result"),
    [
        (Payload("application/json", b"[1]"), [1]),
        (Payload("image/png", b"\xff"), {"__type__": "base64", "__value__": "/w=="}),
        (Payload("text/plain", b"a text"), {"__type__": "bytes", "__value__": "a text"}),
    ],
)
def test_an_output_is_written_as_celerys_clients_read_it(output: Payload, result: object) -> None:
    [sent] = answers(AnsweredTask("task", (), ""), output, now=1.0)
    entry = json.loads(sent.text)
    assert entry == {"status": "SUCCESS", "result": result, "traceback": None, "children": [], "task_id": "task"}


def test_an_output_beyond_the_limit_is_an_error_with_the_jobs_id() -> None:
    error = TooLarge(f"read it at the gateway: GET /v1/jobs/{JOB.id}/result")
    [sent] = answers(AnsweredTask("task", (), ""), error, now=1.0)
    entry = json.loads(sent.text)
    assert entry["status"] == "FAILURE"
    assert entry["result"]["exc_type"] == "TooLarge"
    assert str(JOB.id) in entry["result"]["exc_message"][0]
