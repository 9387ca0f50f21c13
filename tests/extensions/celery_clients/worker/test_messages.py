from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.broker.records import NewJob
from penstock.broker.store.ops import submit_args
from penstock.extensions.celery_clients.ops import WORD, Rejected, read_word
from penstock.extensions.celery_clients.worker.follow_ups import after_failure, after_success
from penstock.extensions.celery_clients.worker.messages import job_from
from penstock.job import MAX_DELAY_S, JobId, Priority
from penstock.model_spec import ModelInfo, ModelSpec

SPEC = ModelSpec("square", "square.py", version="2")
INFO = ModelInfo("square", "1", versions={"1": None, "2": None})
ID = JobId("0" * 26, "square")
NOW = 1_800_000_000.0


def message(name: str = "penstock.infer", *, args: Any = ("square", 4), kwargs: Any = None, **options: Any) -> bytes:
    """Return the message that an ordinary Celery client of the installed release puts into the Redis list."""
    with Celery("client", broker="memory://", set_as_current=False) as app, app.connection_for_write() as connection:
        queue = app.amqp.queues.select_add("penstock.{square}")
        app.send_task(name, args=args, kwargs=kwargs, queue=queue, connection=connection, task_id="task-1", **options)
        return json.dumps(connection.default_channel._get("penstock.{square}")).encode()


# Deeper than any reader goes. As text, because json.dumps goes no deeper either.
NESTED = "[" * 100_000 + "]" * 100_000


def in_body(body: str | None) -> bytes:
    """Return a message whose body is this text."""
    parts = json.loads(message())
    return json.dumps(parts | {"body": base64.b64encode(body.encode()).decode() if body else body}).encode()


def in_header(name: str, value: Any) -> bytes:
    parts = json.loads(message())
    return json.dumps(parts | {"headers": parts["headers"] | {name: value}}).encode()


def may_send(queue: str) -> bool:
    return queue != "forbidden"


def followed(**signature: Any) -> bytes:
    return message(chain=[signature])


def read(raw: bytes) -> NewJob | Rejected:
    return job_from(raw, ID, spec=SPEC, info=INFO, now=NOW, may_send=may_send)


def accepted(raw: bytes) -> NewJob:
    job = read(raw)
    assert isinstance(job, NewJob), job
    return job


def word(job: NewJob) -> tuple[str, bytes]:
    """The job's tasks, and the message."""
    found = job.words[WORD]
    assert isinstance(found, bytes)
    return read_word(found)


def test_a_task_becomes_a_job_that_remembers_who_asked() -> None:
    raw = message(args=["square", {"x": 4}])
    job = accepted(raw)
    assert json.loads(job.input.data) == {"x": 4}
    assert (job.id, job.version, job.priority) == (ID, "1", Priority.INTERACTIVE)
    assert (word(job), job.idempotency_key) == (("task-1", raw), "celery:task-1")


def test_keyword_arguments_choose_version_priority_and_deadline() -> None:
    job = accepted(message(kwargs={"version": "2", "priority": "bulk", "deadline_s": 5}))
    assert (job.version, job.priority, job.deadline_s) == ("2", Priority.BULK, 5.0)


def test_celerys_expiry_is_the_jobs_deadline() -> None:
    job = accepted(message(expires="2027-01-15T08:01:40+00:00"))
    assert job.deadline_s == 100.0


def test_celerys_eta_and_countdown_are_the_jobs_start() -> None:
    """Celery makes of either a moment; the model's limit counts from there."""
    job = accepted(message(eta=datetime.fromtimestamp(NOW + 60.0, UTC)))
    assert (job.delay_s, job.deadline_s) == (60.0, SPEC.limits.deadline_s + 60.0)
    raw = message(countdown=60)
    eta = datetime.fromisoformat(json.loads(raw)["headers"]["eta"]).timestamp()
    counted = job_from(raw, ID, spec=SPEC, info=INFO, now=eta - 45.0, may_send=may_send)
    assert isinstance(counted, NewJob)
    assert counted.delay_s == pytest.approx(45.0)


def test_a_start_in_the_past_is_now() -> None:
    assert accepted(message(eta=datetime.fromtimestamp(NOW - 60.0, UTC))).delay_s == 0.0


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
        (lambda: message(eta=datetime.fromtimestamp(NOW + 60.0, UTC), kwargs={"deadline_s": 30}), "before the start"),
        (lambda: message(eta=datetime.fromtimestamp(NOW + 2 * MAX_DELAY_S, UTC)), "at most 2592000 s"),
        (lambda: in_header("eta", 60), "eta is a moment"),
        (lambda: followed(task="shop.done", options={"queue": "forbidden"}), "may not write to the queue 'forbidden'"),
        (lambda: followed(task="shop.done", options={"queue": "x.reply.celery.pidbox"}), "no queue"),
        (lambda: followed(task="shop.done", options={"serializer": "pickle"}), "unknown field `serializer`"),
        (lambda: followed(task="shop.done", options={"countdown": "soon"}), "Expected `float | null`"),
        (lambda: followed(task="celery.chord", subtask_type="chord"), "not by a chord"),
        (lambda: followed(task="celery.group", subtask_type="group", kwargs={"tasks": 5}), "Expected `array`"),
        (lambda: followed(task="shop.done", options={"task_id": "two\nlines"}), "matching regex"),
        (lambda: followed(args=[]), "missing required field `task`"),
        (lambda: message(chord={"task": "shop.sum"}), "cannot be one of a chord"),
        (lambda: message(kwargs={"version": "3"}), "no version '3'; its versions: 1, 2"),
        (lambda: message(kwargs={"version": "1:someone-else"}), "no version '1:someone-else'"),
        (lambda: message(kwargs={"version": ["1"]}), "Expected `str | null`, got `array`"),
        (lambda: message(kwargs={"deadline_s": 10**400}), "out of range"),
        (lambda: message(args=[["square"], 4]), "Expected `str`, got `array`"),
        (lambda: in_body('{"input": 4}'), "message protocol 2"),
        (lambda: in_body(f"[{NESTED}, {{}}, {{}}]"), "recursion"),
        (lambda: in_body(None), "truncated"),
        (lambda: in_header("expires", 5), "ISO 8601"),
        (lambda: in_header("expires", "tomorrow"), "isoformat"),
    ],
)
def test_what_cannot_become_a_job_is_answered_with_the_reason(raw: Any, reason: str) -> None:
    rejected = read(raw())
    assert isinstance(rejected, Rejected)
    assert rejected.celery_id == "task-1"
    assert reason in rejected.reason


def test_what_waits_for_a_task_that_is_refused_is_known() -> None:
    """Or a client would wait for the end of a chain that never began."""
    chain = [{"task": "c", "options": {"task_id": "id-c"}}, {"task": "b", "options": {"task_id": "id-b"}}]
    refused = read(message(args=["square"], chain=chain))
    assert isinstance(refused, Rejected)
    assert refused.chain == ("id-c", "id-b")
    refused = read(message(chord={"task": "sum", "options": {"task_id": "id-sum"}}))
    assert isinstance(refused, Rejected)
    assert refused.chain == ("id-sum",)


def test_a_later_tasks_queue_is_the_matter_of_who_runs_the_task_before_it() -> None:
    later = {"task": "shop.b", "options": {"queue": "forbidden"}}
    accepted(message(chain=[later, {"task": "shop.a"}]))
    refused = read(message(chain=[later, {"task": "penstock.square"}]))
    assert isinstance(refused, Rejected), "a model's own task would be refused after the first had run"


def test_an_input_stays_as_its_sender_wrote_it() -> None:
    """A number beyond 64 bits was a fault of the slot, every 15 seconds; now the model reads it, as it reads a request's."""
    body = f'[["square", {10**30}], {{}}, {{"chain": null}}]'
    assert accepted(in_body(body)).input.data == str(10**30).encode()


def test_an_id_that_is_no_celery_id_names_no_key() -> None:
    for id in ("x" * 300, 7, {"id": 1}, ""):
        rejected = read(in_header("id", id))
        assert isinstance(rejected, Rejected)
        assert rejected.celery_id == ""


def test_a_reason_is_short_whatever_was_sent() -> None:
    rejected = read(message("x" * 10_000))
    assert isinstance(rejected, Rejected)
    assert len(rejected.reason) <= 300


SENT = message()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([10**400, "square", "1", "bulk"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SIGNATURES = st.fixed_dictionaries(
    {},
    optional={
        "task": st.sampled_from(["shop.done", "penstock.square", "celery.group"]) | JSON_VALUES,
        "subtask_type": st.sampled_from([None, "group", "chord"]) | JSON_VALUES,
        "options": st.fixed_dictionaries({}, optional=dict.fromkeys(("queue", "task_id", "countdown", "other"), JSON_VALUES)),
        "kwargs": st.fixed_dictionaries({}, optional={"tasks": JSON_VALUES, "body": JSON_VALUES}) | JSON_VALUES,
        "args": JSON_VALUES,
    },
)
EMBEDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("chain", "callbacks", "errbacks", "chord"), st.lists(SIGNATURES, max_size=3) | JSON_VALUES)
)
CALLS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("model", "input", "version", "priority", "deadline_s", "other"), JSON_VALUES)
)
BODIES = JSON_VALUES | st.tuples(
    st.lists(JSON_VALUES, max_size=3) | st.just(["square", 4]), CALLS | st.just({}), EMBEDS | JSON_VALUES
)
HEADERS = st.fixed_dictionaries(
    {"task": st.just("penstock.infer"), "id": st.just("task-1") | JSON_VALUES},
    optional=dict.fromkeys(("expires", "traceparent", "tracestate"), JSON_VALUES),
)


@st.composite
def malformed(draw: st.DrawFn) -> bytes:
    """A Celery message with foreign values in some of its places."""
    parts = json.loads(SENT)
    body = json.dumps(draw(BODIES)).encode()
    parts |= {"body": base64.b64encode(body).decode(), "headers": draw(HEADERS)}
    parts |= draw(st.dictionaries(st.sampled_from(["body", "headers", "properties", "content-type"]), JSON_VALUES, max_size=1))
    return json.dumps(parts).encode()


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(malformed() | st.binary(max_size=64))
def test_whatever_is_sent_becomes_a_job_of_a_known_version_or_is_rejected_with_a_reason(raw: bytes) -> None:
    found = read(raw)
    if isinstance(found, Rejected):
        assert found.reason
        assert (found.reason + found.celery_id).encode()
        return
    assert found.version in INFO.versions
    _, _, kept = word(found)[0].partition("\n")
    for one in [*after_success(kept, b"[1]", now=NOW), *after_failure(kept, now=NOW)]:
        assert json.loads(one.message.text)["headers"]["id"] == one.id
    assert 0 < found.deadline_s <= max(SPEC.limits.deadline_s, SPEC.limits.bulk_deadline_s)
    # What the store is sent: numbers that are whole and fit, texts that have a form in bytes.
    assert all(isinstance(arg, (int, bytes)) or arg.encode() is not None for arg in submit_args([found], 1))


@pytest.mark.parametrize("raw", [b"", b"\x80\x04pickle", b"[]", b"{}", b'{"headers": 1}', b'{"headers": {"id": null}}'])
def test_what_is_no_celery_message_at_all_is_rejected_without_an_id(raw: bytes) -> None:
    rejected = read(raw)
    assert isinstance(rejected, Rejected)
    assert rejected.celery_id == ""
