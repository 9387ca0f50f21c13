from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import BadRequest
from penstock.loadtest.adapters import make_adapter
from penstock.loadtest.generator.connection import RequestBody
from penstock.loadtest.workload import CallStyle, Kind

BASE = "http://h:81"


@pytest.mark.parametrize(
    ("kind", "more", "path"),
    [
        (Kind.PENSTOCK, {}, "/predictions/m"),
        (Kind.PENSTOCK, {"version": "2", "deadline_s": 0.1}, "/predictions/m/2?deadline_s=0.1"),
        (Kind.PENSTOCK, {"caller": CallStyle.ASYNC}, "/v1/models/m/jobs"),
        (Kind.PENSTOCK, {"caller": CallStyle.SUBMIT, "version": "2"}, "/v1/models/m/versions/2/jobs"),
        (Kind.TORCHSERVE, {"version": "1.0", "deadline_s": 0.1}, "/predictions/m/1.0"),
        (Kind.OIP, {}, "/v2/models/m/infer"),
        (Kind.OIP, {"version": "3"}, "/v2/models/m/versions/3/infer"),
    ],
)
def test_each_kind_of_server_has_its_path(kind: Kind, more: dict[str, Any], path: str) -> None:
    assert make_adapter(kind, BASE + "/", "m", **more).target.path == path


def test_an_endpoint_of_any_server_is_called_as_its_url_says() -> None:
    door = make_adapter(Kind.HTTP, "http://h:81/a/b?c=1", "", method="PUT", headers={"X-Key": "1"})
    request = door.request(RequestBody(b"hi", "text/plain"))
    assert request.startswith(b"PUT /a/b?c=1 HTTP/1.1\r\nHost: h:81\r\n")
    assert b"X-Key: 1\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi" in request


def test_the_poll_for_a_result_names_the_job_and_carries_the_key() -> None:
    before, after = make_adapter(
        Kind.PENSTOCK, BASE, "m", caller=CallStyle.ASYNC, headers={"Authorization": "Bearer k"}
    ).poll_head()
    request = before + b"abc-m" + after
    assert request.startswith(b"GET /v1/jobs/abc-m/result?wait=25 HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in request


def test_jobs_are_penstocks_alone_and_models_have_names() -> None:
    with pytest.raises(BadRequest, match="needs penstock's jobs"):
        make_adapter(Kind.TORCHSERVE, BASE, "m", caller=CallStyle.SUBMIT)
    with pytest.raises(BadRequest, match="model's name"):
        make_adapter(Kind.OIP, BASE, "")
