from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import Media
from penstock.client import calls, protocol
from penstock.client.protocol import Answer, InputBody
from penstock.client.views import job_view
from penstock.errors import BadRequest
from penstock.gateway.asgi.content import file_headers
from penstock.outputs.media import stored_type
from tests.unit.client.scripted_gateway import job


def test_a_plain_value_travels_as_json() -> None:
    assert protocol.body_of({"x": 4}) == InputBody("application/json", b'{"x":4}')


def test_bytes_travel_as_they_are() -> None:
    assert protocol.body_of(b"\x00\xff") == InputBody("application/octet-stream", b"\x00\xff")


def test_a_path_travels_as_its_file_with_a_guessed_media_type(tmp_path: Path) -> None:
    image = tmp_path / "cat.png"
    image.write_bytes(b"png")
    assert protocol.body_of(image) == InputBody("image/png", b"png")


def test_a_missing_input_file_is_the_callers_fault_and_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"nowhere\.png"):
        protocol.body_of(tmp_path / "nowhere.png")


def test_text_with_a_media_type_of_its_own_is_not_quoted() -> None:
    assert protocol.body_of("hello", "text/plain") == InputBody("text/plain", b"hello")
    assert protocol.body_of("hello").content == b'"hello"'


def test_arrays_travel_as_lists() -> None:
    class Array:
        def tolist(self) -> list[int]:
            return [1, 2]

    assert protocol.body_of({"x": Array()}).content == b'{"x":[1,2]}'


@pytest.mark.parametrize("value", [float("nan"), object(), {1, 2}])
def test_what_json_cannot_hold_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(BadRequest, match="does not fit JSON"):
        protocol.body_of(value)


def test_every_submit_carries_an_idempotency_key_of_its_own() -> None:
    first = calls.submit_call("square", InputBody("application/json", b"1"))
    second = calls.submit_call("square", InputBody("application/json", b"1"))
    assert first.repeatable
    assert first.headers["idempotency-key"] != second.headers["idempotency-key"]


def test_options_of_a_submit_are_query_parameters() -> None:
    call = calls.submit_call(
        "a b/c", InputBody("text/plain", b"hi"), version="2", priority="bulk", deadline_s=2.5, idempotency_key="k"
    )
    assert call.url == "/v1/models/a%20b%2Fc/versions/2/jobs"
    assert call.params == {"priority": "bulk", "deadline_s": "2.5"}
    assert call.headers == {"content-type": "text/plain", "idempotency-key": "k"}


def test_an_option_that_does_not_exist_is_named_with_those_that_do() -> None:
    misspelt: Any = {"deadline": 3.0}
    with pytest.raises(TypeError, match="no option 'deadline'; it takes version, priority, deadline_s"):
        calls.submit_call("square", InputBody("text/plain", b"hi"), **misspelt)


def test_links_of_the_body_are_followed_instead_of_built() -> None:
    view = job_view(job())
    assert calls.poll_call(view).url == "/linked/job"
    assert calls.result_call(view, wait_s=20).params == {"wait": "20"}
    assert calls.cancel_call(view).url == "/linked/cancel"


def test_a_replay_carries_a_key_so_that_repeating_it_makes_no_second_job() -> None:
    view = job_view({"id": "x-square", "status": "failed", "replayed_as": "y-square"})
    call = calls.replay_call(view, version="2")
    assert (call.method, call.url, call.params) == ("POST", "/v1/jobs/x-square/replay", {"version": "2"})
    assert len(call.headers["idempotency-key"]) == 32
    assert calls.replay_call(view, idempotency_key="k").headers == {"idempotency-key": "k"}
    assert (view.replayed_as, view.replay_of) == ("y-square", "")


def test_without_links_the_documented_addresses_are_used() -> None:
    view = job_view({"id": "x-square", "status": "queued"})
    assert calls.result_call(view).url == "/v1/jobs/x-square/result"


@pytest.mark.parametrize(
    ("base", "link", "url"),
    [
        ("http://h:1", "/v1/jobs/x", "http://h:1/v1/jobs/x"),
        ("http://h/prefix", "/v1/jobs/x", "http://h/prefix/v1/jobs/x"),
        ("http://h/prefix", "/prefix/v1/jobs/x", "http://h/prefix/v1/jobs/x"),
        ("http://h", "https://blobs/x", "https://blobs/x"),
    ],
)
def test_links_resolve_below_the_prefix_of_a_proxy(base: str, link: str, url: str) -> None:
    assert protocol.resolve(base, link) == url


def test_the_address_comes_from_the_caller_then_the_environment_then_the_default() -> None:
    env = {"PENSTOCK_URL": "http://env:1/"}
    assert protocol.base_url("http://given", env) == "http://given"
    assert protocol.base_url(None, env) == "http://env:1"
    assert protocol.base_url(None, {}) == "http://127.0.0.1:8080"


def test_an_address_without_a_scheme_is_refused_with_an_example() -> None:
    with pytest.raises(BadRequest) as caught:
        protocol.base_url("localhost:8080", {})
    assert "http://127.0.0.1:8080" in str(caught.value.hint)


def output(content_type: str, content: bytes, disposition: str = "") -> Any:
    return protocol.value_of(Answer(200, {"content-type": content_type, "content-disposition": disposition}, content))


def test_outputs_are_decoded_json_or_bytes_or_files() -> None:
    assert output("application/json; charset=utf-8", b'{"y":16}') == {"y": 16}
    assert output("application/octet-stream", b"raw") == b"raw"
    assert output("", b"raw") == b"raw"
    assert output("image/png", b"png") == Media(b"png", "image/png")
    assert output("text/csv; charset=utf-8", b"a", "attachment") == Media(b"a", "text/csv; charset=utf-8")


@pytest.mark.parametrize("name", ["report.json", "a b.json", "café; 100%.json", "x'\".json"])
@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream", "image/png"])
def test_an_output_with_a_name_is_a_file_whatever_its_type(content_type: str, name: str) -> None:
    headers = file_headers(stored_type(content_type, name))
    assert protocol.value_of(Answer(200, headers, b"{}")) == Media(b"{}", content_type, name)


@pytest.mark.parametrize("name", ['="../a"', "*=UTF-8''..%2Fa", '=""'])
def test_a_name_that_leads_elsewhere_is_not_taken_over(name: str) -> None:
    assert output("image/png", b"png", f"attachment; filename{name}") == Media(b"png", "image/png")
    assert output("image", b"png", 'attachment; filename="a.png"') == b"png"


def test_a_page_asks_for_no_more_jobs_than_a_gateway_lists_at_a_time() -> None:
    assert [calls.page_call(model=None, status=None, after=None, limit=n).params["limit"] for n in (20, 5_000)] == ["20", "200"]
