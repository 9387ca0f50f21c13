from __future__ import annotations

import json

import pytest

from penstock.broker.records import Push
from penstock.errors import NotFound
from penstock.gateway.asgi.negotiation import SubmitTarget, host_name, parse_submit_target
from penstock.gateway.asgi.wire import header_value, is_close_needed
from penstock.gateway.jobs.events.encoding import HEARTBEAT, encoding_for
from penstock.gateway.jobs.events.told import Seen, ToldEvent, lost_history
from penstock.gateway.jobs.predict import server_timing
from penstock.gateway.jobs.results import ended_without_output
from penstock.gateway.jobs.views import accepted_body, change_id, etag, job_view
from penstock.gateway.models.finding import merged, unknown_model
from penstock.gateway.models.validators import compile_schema
from penstock.gateway.models.views import rebased
from penstock.job import BatchRecord, Job, JobError, JobId, JobState, Priority
from penstock.model_spec import Limits, ModelInfo, VersionInfo

ID = JobId("01k9xw3c5t8ze2m4v6b7n0q1rs", "square")


def job(state: JobState = JobState.QUEUED, *, attempts: int = 0, error: JobError | None = None) -> Job:
    return Job(ID, state, "1", Priority.INTERACTIVE, created_at=0.0, deadline_at=60.0, attempts=attempts, error=error)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/predictions/square", SubmitTarget("/predictions/{model}", "square", "")),
        ("/predictions/square/2", SubmitTarget("/predictions/{model}/{version}", "square", "2")),
        ("/explanations/square", SubmitTarget("/explanations/{model}", "square", "")),
        ("/explanations/square/2", SubmitTarget("/explanations/{model}/{version}", "square", "2")),
        ("/v1/models/square/jobs", SubmitTarget("/v1/models/{model}/jobs", "square", "")),
        ("/v1/models/square/versions/2/jobs", SubmitTarget("/v1/models/{model}/versions/{version}/jobs", "square", "2")),
    ],
)
def test_a_submit_path_names_its_endpoint(path: str, target: SubmitTarget) -> None:
    assert parse_submit_target(path) == target


@pytest.mark.parametrize(
    "path",
    [
        "/predictions/",
        "/explanations/",
        "/explanations/a/b/c",
        "/predictions/a/",
        "/predictions/a/b/c",
        "/v1/models//jobs",
        "/v1/models/a/b/jobs",
        "/v1/models/a",
        "/",
    ],
)
def test_other_paths_are_left_to_the_rest(path: str) -> None:
    assert parse_submit_target(path) is None


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (b"localhost:8080", "localhost"),
        (b"127.0.0.1", "127.0.0.1"),
        (b"[::1]:80", "[::1]"),
        (b"LOCALHOST", "localhost"),
        (b"", ""),
    ],
)
def test_a_host_is_known_by_its_name_without_the_port(host: bytes, name: str) -> None:
    assert host_name(host) == name


def test_an_unknown_model_is_answered_with_near_matches() -> None:
    error = unknown_model("squre", ["square", "resnet"])
    assert isinstance(error, NotFound)
    assert error.hint == "Did you mean square?"


def test_an_unknown_model_like_no_other_is_answered_with_what_there_is() -> None:
    assert unknown_model("zzz", ["square", "resnet"]).hint == "Known models: square, resnet."


def test_limits_come_from_the_own_settings_and_schemas_from_the_workers() -> None:
    spoken = VersionInfo(description="spoken")
    declared = ModelInfo("square", "2", limits=Limits(max_queue_depth=5), versions={"1": None, "2": None})
    stored = ModelInfo("square", "1", versions={"1": spoken, "3": None})
    known = merged(declared, stored)
    assert (known.default_version, known.limits.max_queue_depth) == ("2", 5)
    assert known.versions == {"1": spoken, "2": None, "3": None}


def test_a_schema_that_refers_elsewhere_is_not_followed() -> None:
    assert compile_schema({"$ref": "http://127.0.0.1:9/schema.json"}, model="square") is None


def test_a_schema_moved_into_the_document_refers_to_its_new_place() -> None:
    schema = {"$defs": {"A": {"type": "string"}}, "items": [{"$ref": "#/$defs/A"}], "other": {"$ref": "http://x/#y"}}
    moved = rebased(schema, "#/components/schemas/m")
    assert moved["items"][0]["$ref"] == "#/components/schemas/m/$defs/A"
    assert moved["other"]["$ref"] == "http://x/#y"


def test_a_fresh_job_is_told_in_the_words_of_a_read_one() -> None:
    body = json.loads(accepted_body(ID, version="1", priority=Priority.BULK, position=3, eta_s=0.5))
    assert body.keys() <= job_view(job()).keys() | {"position", "eta_s"}
    assert (body["status"], body["position"], body["eta_s"], body["priority"]) == ("queued", 3, 0.5, "bulk")


def test_a_given_up_job_has_failed_with_its_reason() -> None:
    view = job_view(job(JobState.DEAD, error=JobError("poison", "It crashed too often.")))
    assert (view["status"], view["error"]["code"]) == ("failed", "poison")


def test_a_tag_changes_with_the_state_only() -> None:
    assert etag(job()) == etag(job())
    assert len({etag(job()), etag(job(JobState.LEASED, attempts=1)), etag(job(JobState.SUCCEEDED, attempts=1))}) == 3


def test_history_is_lost_when_the_client_saw_more_than_there_is() -> None:
    now = job(JobState.LEASED, attempts=1)
    assert not lost_history("", now)
    assert not lost_history(change_id(job()), now)
    assert not lost_history(change_id(now), now)
    assert lost_history("2.0.1", now)
    assert lost_history("of another server", now)


async def test_an_event_is_one_block_or_one_line() -> None:
    event = ToldEvent("chunk", "1.0.0~1.0:7", b'"x"')
    assert await encoding_for("text/event-stream").encode([event]) == b'event: chunk\nid: 1.0.0~1.0:7\ndata: "x"\n\n'
    lines = encoding_for("application/x-ndjson")
    assert json.loads(await lines.encode([event])) == {"event": "chunk", "id": "1.0.0~1.0:7", "data": "x"}
    assert (await encoding_for("*/*").encode([]), await lines.encode([])) == (HEARTBEAT, b"\n")


@pytest.mark.parametrize("seen", [Seen("1.0.0", "1.0", 7), Seen("1.0.0"), Seen("of another server")])
def test_what_a_reader_has_seen_is_read_from_the_id_of_its_last_event(seen: Seen) -> None:
    assert Seen.parse(seen.id) == seen


def test_a_live_job_has_no_end() -> None:
    assert Push.of_end(job(JobState.LEASED), None) is None


def test_an_end_read_from_the_record_is_the_end_that_was_pushed() -> None:
    record = job(JobState.FAILED, error=JobError("handler_error", "ValueError: no"))
    assert Push.of_end(record, None) == Push(ID, JobState.FAILED, None, "handler_error", "ValueError: no")


@pytest.mark.parametrize(("state", "code"), [(JobState.CANCELLED, "cancelled"), (JobState.EXPIRED, "expired")])
def test_an_end_without_an_error_is_named_by_its_state(state: JobState, code: str) -> None:
    assert ended_without_output(Push(ID, state)).code == code


def test_server_timing_tells_run_and_the_rest() -> None:
    batch = BatchRecord("b", 3, "full", 0.001, 0.002, 0.001)
    assert server_timing(batch, 0.010) == b'queue;dur=6.000, batch;desc="3 full", run;dur=4.000, total;dur=10.000'
    assert server_timing(None, 0.010) == b"total;dur=10.000"


def test_a_header_value_carries_no_line_breaks() -> None:
    assert header_value("text/plain\r\nset-cookie: a") == b"text/plainset-cookie: a"


def test_only_a_refused_upload_of_unknown_or_great_length_costs_its_connection() -> None:
    assert not is_close_needed(413, {b"content-length": b"5000000"})
    assert is_close_needed(413, {})
    assert is_close_needed(413, {b"content-length": b"99999999999"})
    assert not is_close_needed(400, {})
