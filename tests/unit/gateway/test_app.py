"""The ASGI application without a server: what holds for every request, whatever its endpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.aio import AsyncStore
from penstock.gateway.app import Gateway
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.auth.keys import EVERYBODY
from penstock.settings.tables import Settings

HOST = (b"host", b"localhost")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads of files look at the clock of their disk, in the working folder here; the checkout once kept that mark."""
    monkeypatch.chdir(tmp_path)


def gateway(lifetime: Lifetime | None = None, **table: Any) -> Gateway:
    """A gateway without models and without a store, for tests of what is decided before either is asked."""
    nowhere = AsyncStore("redis://127.0.0.1:1")
    settings = Settings.load(None, {}, flags={f"gateway.{name}": value for name, value in table.items()})
    return Gateway(settings, store=nowhere, blobs=LocalBlobs(Path("nowhere")), lifetime=lifetime or Lifetime())


async def ask(app: Gateway, path: str, *, method: str = "GET", fail: Exception | None = None) -> tuple[int, dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if fail is not None:
            raise fail
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    head = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": [HOST]}
    await app({**head, "root_path": "", "asgi": {"version": "3.0"}}, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


PAGE = b"https://app.example"
PREFLIGHT = {b"origin": PAGE, b"access-control-request-method": b"POST", b"access-control-request-headers": b"prefer"}


async def headers_of(
    app: Gateway, path: str, sent: dict[bytes, bytes], *, method: str = "GET"
) -> tuple[int, dict[bytes, bytes]]:
    """Return status and headers of the answer to a browser's request."""
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    head = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    await app({**head, "headers": [HOST, *sent.items()], "asgi": {"version": "3.0"}}, receive, send)
    return messages[0]["status"], dict(messages[0]["headers"])


async def test_a_page_of_a_named_origin_may_call_and_read_refusals_too() -> None:
    app = gateway(cors_origins=(PAGE.decode(),))
    status, preflight = await headers_of(app, "/v1/models/m/jobs", PREFLIGHT, method="OPTIONS")
    assert (status, preflight[b"access-control-allow-origin"]) == (204, PAGE)
    assert b"POST" in preflight[b"access-control-allow-methods"]
    assert {b"authorization", b"idempotency-key", b"prefer"} <= set(preflight[b"access-control-allow-headers"].split(b", "))
    status, answer = await headers_of(app, "/v1/nothing", {b"origin": PAGE})
    assert (status, answer[b"access-control-allow-origin"], answer[b"vary"]) == (404, PAGE, b"origin")
    assert b"location" in answer[b"access-control-expose-headers"]
    # A browser sends no cookie along, so a session of the dashboard is of no use to the page.
    assert b"access-control-allow-credentials" not in preflight | answer


@pytest.mark.parametrize(
    ("origins", "origin", "path"),
    [
        ((), PAGE, "/v1/models"),
        (("https://app.example",), b"https://evil.example", "/v1/models"),
        (("https://app.example",), b"http://app.example", "/v1/models"),
        (("https://app.example",), b"null", "/v1/models"),
        (("https://app.example",), PAGE, "/ui/api"),
    ],
)
async def test_no_other_page_may_call_and_none_may_read_the_dashboard(
    origins: tuple[str, ...], origin: bytes, path: str
) -> None:
    app = gateway(cors_origins=origins)
    status, preflight = await headers_of(app, path, {**PREFLIGHT, b"origin": origin}, method="OPTIONS")
    assert status == 405
    _, answer = await headers_of(app, path, {b"origin": origin})
    assert not [name for name in (preflight | answer) if name.startswith(b"access-control")]


async def test_a_head_of_a_path_without_a_get_is_a_wrong_method() -> None:
    status, headers = await headers_of(gateway(), "/v1/models/m/jobs", {}, method="HEAD")
    assert (status, headers[b"allow"]) == (405, b"POST")


async def test_above_the_limit_of_open_requests_new_ones_are_refused_but_probes_are_not() -> None:
    app = gateway(max_requests=1)
    app.services.requests.take(EVERYBODY)
    status, body = await ask(app, "/v1/models")
    assert (status, body["code"], body["retryable"]) == (503, "gateway_busy", True)
    assert await ask(app, "/livez") == (200, {"status": "live"})


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_bug_in_an_endpoint_is_answered_without_its_words(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = gateway()
    monkeypatch.setattr(app.services.registry, "find", None)  # now every call fails with an unforeseen error
    status, body = await ask(app, "/predictions/square" if method == "POST" else "/v1/models/square", method=method)
    assert (status, body["code"]) == (500, "internal")
    assert "NoneType" not in json.dumps(body)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/runs", "/v1/batches", "/v1/files"])
async def test_a_client_that_hangs_up_before_its_body_has_come_is_no_bug(path: str) -> None:
    """Behind FastAPI this was taken for a fault of ours, and logged with a traceback as `request_failed`."""
    app = gateway()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    content = b"multipart/form-data; boundary=x" if path == "/v1/files" else b"application/json"
    head = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    with capture_logs() as lines:
        await app({**head, "headers": [HOST, (b"content-type", content)], "asgi": {"version": "3.0"}}, receive, send)
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == [499]
    assert lines == []


async def test_a_gateway_that_stops_is_not_ready_and_still_alive() -> None:
    lifetime = Lifetime()
    app = gateway(lifetime)
    lifetime.drain(30.0)
    status, body = await ask(app, "/readyz")
    assert (status, body["errors"]) == (503, [{"pointer": "gateway", "detail": "stopping"}])
    assert (await ask(app, "/livez"))[0] == 200
    assert not lifetime.is_last_call()


async def test_a_gateway_that_never_reached_its_store_has_not_started() -> None:
    assert (await ask(gateway(), "/startupz"))[0] == 503


async def test_the_events_of_many_jobs_are_no_job() -> None:
    """DELETE takes an id here, and `events` is none: the page of the right methods does not name it."""
    app = gateway()
    status, body = await ask(app, "/v1/jobs/events", method="PATCH")
    assert (status, body["code"]) == (405, "method_not_allowed")
    assert body["detail"].endswith("it takes GET, HEAD")
    assert (await ask(app, "/v1/jobs/some-job", method="PATCH"))[1]["detail"].endswith("it takes DELETE, GET, HEAD")
