from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import Media
from penstock.client.handles import job_map
from penstock.client.problems import AnswerTimeout, GatewayUnreachable, JobFailed
from penstock.client.retries import RetryPolicy
from penstock.client.sync import Client
from penstock.errors import BadRequest, Conflict, InvalidInput, NotFound, Overloaded
from tests.certificates import Authority
from tests.unit.client.scripted_gateway import JOB_ID, Line, job, playing, problem

NOW = {"retry-after": "0"}
BRISK = RetryPolicy(first_wait_s=0.001)


def test_submit_sends_the_input_and_returns_a_handle() -> None:
    with playing(Line(202, job())) as gateway, Client(gateway.url, "secret") as client:
        handle = client.submit("square", {"x": 4}, priority="bulk")
    assert (handle.id, handle.status) == (JOB_ID, "queued")
    assert gateway.paths() == ["POST /v1/models/square/jobs?priority=bulk"]
    assert gateway.seen[0].content == b'{"x":4}'
    assert gateway.seen[0].headers["authorization"] == "Bearer secret"


def test_a_submit_whose_answer_was_lost_is_sent_again_under_the_same_key() -> None:
    with playing(Line(hang_up=True), Line(202, job())) as gateway, Client(gateway.url, retry=BRISK) as client:
        client.submit("square", 4)
    first, second = gateway.seen
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def test_a_call_to_an_overloaded_gateway_is_repeated_after_its_wait() -> None:
    full = problem(429, "overloaded", headers=NOW)
    with playing(full, full, Line(202, job())) as gateway, Client(gateway.url) as client:
        client.submit("square", 4)
    assert len(gateway.seen) == 3


def test_a_gateway_that_forbids_retries_gets_one_request() -> None:
    full = problem(429, "overloaded", headers={**NOW, "x-should-retry": "false"})
    with playing(full) as gateway, Client(gateway.url) as client, pytest.raises(Overloaded):
        client.submit("square", 4)
    assert len(gateway.seen) == 1


def test_a_prediction_that_may_have_run_is_not_sent_again() -> None:
    with playing(Line(hang_up=True)) as gateway, Client(gateway.url) as client, pytest.raises(GatewayUnreachable):
        client.predict("square", 4)
    assert len(gateway.seen) == 1


def test_a_prediction_that_came_too_late_is_a_timeout() -> None:
    late = problem(504, "sync_timeout", job=JOB_ID)
    with playing(late) as gateway, Client(gateway.url) as client, pytest.raises(TimeoutError) as caught:
        client.predict("square", 4, deadline_s=0.1)
    assert isinstance(caught.value, AnswerTimeout)
    assert vars(caught.value)["problem"].job == JOB_ID


def test_a_window_of_no_jobs_is_refused() -> None:
    with Client() as client, pytest.raises(BadRequest, match="at least 1"):
        list(client.map("square", [1], in_flight=0))


def test_a_certificate_of_an_unknown_authority_is_told_with_the_variable_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the hint was to start a gateway."""
    authority = Authority(tmp_path)
    with playing(Line(200, {"data": []}), certificate=authority.issue("localhost")) as gateway:
        with Client(gateway.url, retry=RetryPolicy(max_attempts=1)) as client, pytest.raises(GatewayUnreachable) as caught:
            client.models()
        assert caught.value.hint is not None
        assert "SSL_CERT_FILE" in caught.value.hint
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        with Client(gateway.url) as client:
            assert client.models() == []


def test_a_gateway_that_is_not_there_is_named_with_the_next_command() -> None:
    client = Client("http://127.0.0.1:9", retry=RetryPolicy(max_attempts=1))
    with client, pytest.raises(GatewayUnreachable, match=r"127\.0\.0\.1:9") as caught:
        client.models()
    assert "penstock up" in str(caught.value.hint)


def test_a_result_follows_the_link_of_the_job() -> None:
    with playing(Line(202, job()), Line(200, {"y": 16})) as gateway, Client(gateway.url) as client:
        assert client.submit("square", 4).result() == {"y": 16}
    assert gateway.paths()[1] == "GET /linked/result?wait=25"


def test_a_key_is_not_sent_to_the_host_that_keeps_the_blob() -> None:
    with playing(Line(200, raw=b"png", headers={"content-type": "image/png"})) as blobs:
        script = [Line(202, job()), Line(303, headers={"location": f"{blobs.url}/blob"})]
        with playing(*script) as gateway, Client(gateway.url, "secret") as client:
            assert client.submit("square", 4).result() == Media(b"png", "image/png")
    assert "authorization" not in blobs.seen[0].headers


def test_a_failed_job_raises_with_its_problem() -> None:
    script = [Line(202, job()), problem(409, "handler_error"), Line(200, job("failed", error={"code": "x", "message": "boom"}))]
    with playing(*script) as gateway, Client(gateway.url) as client, pytest.raises(JobFailed, match="boom"):
        client.submit("square", 4).result()


def test_cancelling_too_late_is_a_conflict() -> None:
    with playing(Line(202, job()), problem(409, "conflict")) as gateway, Client(gateway.url) as client:
        handle = client.submit("square", 4)
        with pytest.raises(Conflict):
            handle.cancel()
    assert gateway.paths()[1] == "POST /linked/cancel"


def test_a_replay_is_a_handle_on_the_new_job() -> None:
    new = {"id": "new-square", "status": "queued", "replay_of": "old"}
    with playing(Line(200, job("failed")), Line(202, new)) as gateway, Client(gateway.url) as client:
        handle = client.job("x").replay()
    assert (handle.id, handle.view.replay_of, gateway.paths()[1].partition("/")[0]) == ("new-square", "old", "POST ")


def test_many_jobs_are_read_a_hundred_at_a_time() -> None:
    wanted = [f"{n}-square" for n in range(101)]
    first = Line(200, {"data": [job(id=name) for name in wanted[:100]], "has_more": False, "missing": []})
    second = Line(200, {"data": [], "has_more": False, "missing": wanted[100:]})
    with playing(first, second) as gateway, Client(gateway.url) as client:
        assert [handle.id for handle in client.jobs(ids=wanted)] == wanted[:100]
    assert [path.count("-square") for path in gateway.paths()] == [100, 1]


def test_jobs_come_page_by_page() -> None:
    pages = [
        Line(200, {"data": [job()], "has_more": True}),
        Line(200, {"data": [], "has_more": True, "next_after": "further"}),
        Line(200, {"data": [job("failed")], "has_more": False}),
    ]
    with playing(*pages) as gateway, Client(gateway.url) as client:
        assert [handle.status for handle in client.jobs(model="square", limit=1)] == ["queued", "failed"]
    assert gateway.paths()[1:] == [
        f"GET /v1/jobs?model=square&after={JOB_ID}&limit=1",
        "GET /v1/jobs?model=square&after=further&limit=1",
    ]


def test_an_unknown_job_is_not_found() -> None:
    with playing(problem(404, "not_found")) as gateway, Client(gateway.url) as client, pytest.raises(NotFound):
        client.job("01k9xw3c5t8ze2m4v6b7n0q1rs-square")


IDS = tuple(f"01k9xw3c5t8ze2m4v6b7n0q1r{letter}-square" for letter in "abcd")


def ended(*outputs: tuple[str, Any]) -> Line:
    return Line(200, {"data": [job("succeeded", id=job_id, output=output) for job_id, output in outputs]})


def refused() -> Line:
    return problem(422, "invalid_input", "it is no number")


def test_map_keeps_the_order_and_at_most_the_window_in_flight() -> None:
    first, second, third, _ = IDS
    script = [
        *[Line(202, job(id=first)), Line(202, job(id=second)), ended((first, 0))],
        *[Line(202, job(id=third)), ended((second, 1)), ended((third, 4))],
    ]
    with playing(*script) as gateway, Client(gateway.url) as client:
        assert list(client.map("square", range(3), in_flight=2)) == [0, 1, 4]
    assert [path.split("?")[0] for path in gateway.paths()] == [
        "POST /v1/models/square/jobs",
        "POST /v1/models/square/jobs",
        "GET /v1/jobs",
        "POST /v1/models/square/jobs",
        "GET /v1/jobs",
        "GET /v1/jobs",
    ]


def test_map_submits_groups_and_asks_for_their_outputs_together() -> None:
    """Regression: each row cost two requests, so `map` was slower than a loop of `predict`."""
    data = [job(id=one) for one in IDS]
    script = [Line(202, {"data": data[:2]}), Line(202, {"data": data[2:]}), ended(*zip(IDS[:2], "ab", strict=True))]
    with playing(*script, ended(*zip(IDS[2:], "cd", strict=True))) as gateway, Client(gateway.url) as client:
        assert list(client.map("square", range(4), in_flight=4)) == list("abcd")
    assert [path.split("?")[0] for path in gateway.paths()] == ["POST /v1/models/square/jobs:batch"] * 2 + ["GET /v1/jobs"] * 2
    assert gateway.seen[0].content == b"0\n1"


def test_a_refused_row_of_a_map_is_refused_alone_and_in_its_place() -> None:
    script = [refused(), Line(202, job(id=IDS[0])), refused(), ended((IDS[0], 0))]
    with playing(*script) as gateway, Client(gateway.url) as client:
        first, second = client.map("square", [0, "x"], in_flight=8, return_exceptions=True)
    # Each of the two is sent by a thread of its own, so either may get the refusal.
    assert {type(first), type(second)} == {int, InvalidInput}


def test_map_raises_at_the_row_that_failed_or_yields_its_error_and_goes_on() -> None:
    """Regression: a map could not go on past a row that failed."""
    fault = {"code": "handler_error", "message": "below zero", "retryable": False}
    ends = Line(200, {"data": [job("failed", id=IDS[0], error=fault), job("succeeded", id=IDS[1], output=4)]})
    submits = Line(202, {"data": [job(id=IDS[0]), job(id=IDS[1])]})
    with playing(submits, ends) as gateway, Client(gateway.url) as client:
        error, output = client.map("square", range(2), in_flight=8, return_exceptions=True)
    assert (str(error), output) == (f"job {IDS[0]} failed: below zero", 4)
    with playing(submits, ends) as gateway, Client(gateway.url) as client, pytest.raises(JobFailed, match="below zero"):
        list(client.map("square", range(2), in_flight=8))


def test_an_output_that_the_list_left_out_is_read_by_itself() -> None:
    script = [
        Line(202, job()),
        Line(200, {"data": [job("succeeded")]}),
        Line(200, raw=b"\0", headers={"content-type": "image/x"}),
    ]
    with playing(*script) as gateway, Client(gateway.url) as client:
        assert list(client.map("square", [b"a"])) == [Media(b"\0", "image/x")]
    assert gateway.paths()[-1] == "GET /linked/result?wait=25"


def test_an_input_does_not_wait_until_a_slow_source_has_filled_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_map, "_READ_WITHIN_S", 0.0)
    script = [Line(202, job(id=IDS[0])), Line(202, job(id=IDS[1])), ended((IDS[0], 0), (IDS[1], 1))]
    with playing(*script) as gateway, Client(gateway.url) as client:
        assert list(client.map("square", iter(range(2)))) == [0, 1]
    assert gateway.paths()[:2] == ["POST /v1/models/square/jobs"] * 2


def test_unordered_map_yields_what_has_ended_before_what_has_not() -> None:
    one_of_two = Line(200, {"data": [job(id=IDS[0]), job("succeeded", id=IDS[1], output="second")]})
    script = [Line(202, {"data": [job(id=IDS[0]), job(id=IDS[1])]}), one_of_two, ended((IDS[0], "first"))]
    with playing(*script) as gateway, Client(gateway.url) as client:
        assert list(client.map("square", "ab", ordered=False)) == ["second", "first"]


def test_a_map_that_is_left_early_cancels_what_is_still_open() -> None:
    data = [job(id=IDS[0]), job(id=IDS[1])]
    one_of_two = Line(200, {"data": [job("succeeded", id=IDS[0], output=0), data[1]]})
    script = [Line(202, {"data": data}), one_of_two, Line(202, job("cancelled"))]
    with playing(*script) as gateway, Client(gateway.url) as client:
        outputs = client.map("square", range(2))
        assert next(outputs) == 0
        outputs.close()  # type: ignore[attr-defined]
    assert gateway.paths()[-1] == "POST /linked/cancel"
    assert len(gateway.seen) == 3


def events(*told: tuple[str, str, Any]) -> Line:
    lines = [json.dumps({"event": name, "id": event_id, "data": data}) for name, event_id, data in told]
    return Line(raw="".join(f"{line}\n" for line in ["", *lines]).encode())


def test_events_go_on_behind_the_last_one_after_a_lost_connection() -> None:
    with (
        playing(
            Line(body=job()),
            events(("status", "0.0.2", job()), ("chunk", "1.0.0~1.0:1", "a")),
            Line(hang_up=True),
            events(("chunk", "1.0.0~1.0:2", "b"), ("end", "1.0.9~1.0:2", job("succeeded"))),
        ) as gateway,
        Client(gateway.url) as client,
    ):
        handle = client.job(JOB_ID)
        assert list(handle.stream()) == ["a", "b"]
        assert handle.status == "succeeded"
    asked = [request.headers.get("last-event-id") for request in gateway.seen[1:]]
    assert asked == [None, "1.0.0~1.0:1", "1.0.0~1.0:1"]


def test_a_streamed_prediction_goes_on_by_the_events_of_its_job() -> None:
    with playing(
        events(("status", "0.0.2", job()), ("chunk", "1.0.0~1.0:1", "a")),
        events(("restart", "1.0.0~2.0:0", {}), ("chunk", "2.0.0~2.0:1", "c"), ("end", "2.0.9~2.0:1", job("succeeded"))),
    ) as gateway:
        restarts: list[str] = []
        with Client(gateway.url) as client:
            chunks = list(client.stream("square", {"x": 4}, on_restart=lambda: restarts.append("again")))
    assert (chunks, restarts) == (["a", "c"], ["again"])
    assert gateway.paths() == ["POST /predictions/square", f"GET /v1/jobs/{JOB_ID}/events"]
