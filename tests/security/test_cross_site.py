"""A33 on the API: what a web page can have its visitor's browser send without asking first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from penstock.gateway.asgi.negotiation import is_cross_site
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.security.keyed import ALICE, BOSS, MODELS, OPERATIONS, TestKey, filled

CHANGING = [(method, path) for method, path in OPERATIONS if method != "GET"]
JSON_ROUTES = [
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/runs"),
    ("POST", "/v1/models/{model}/versions"),
    ("PUT", "/v1/models/{model}/default"),
]
# A form, fetch() in the mode no-cors with a text or a Blob without a type: none of them is asked about beforehand.
SIMPLE = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]
FOREIGN = [
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "null"},
    {"origin": "http://evil.example"},
    {"origin": "http://localhost:3000"},
    {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
]


@pytest.fixture(scope="module")
def keyless(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("keyless"), models=MODELS) as client:
        yield client


def send(client: httpx2.Client, method: str, path: str, headers: dict[str, str], *, key: TestKey | None) -> httpx2.Response:
    body = b'{"version": "2", "source": "x.py", "model": "square", "input": "x"}'
    return client.request(method, filled(path), content=body, headers=headers | (key.header if key else {}))


@pytest.mark.parametrize(("method", "path"), CHANGING)
def test_no_page_of_another_site_changes_anything_on_a_gateway_without_keys(
    keyless: GatewayClient, method: str, path: str
) -> None:
    """Any page could once submit, upload, start profiles and load model versions at a gateway on its visitor's machine."""
    for foreign in FOREIGN:
        for media in SIMPLE:
            answer = send(keyless, method, path, foreign | ({"content-type": media} if media else {}), key=None)
            assert (answer.status_code, answer.json()["code"]) == (403, "cross_site"), (foreign, media)


@pytest.mark.parametrize(("method", "path"), CHANGING)
def test_nor_does_one_that_knows_a_key(gateway: GatewayClient, method: str, path: str) -> None:
    for key in (ALICE, BOSS):
        answer = send(gateway, method, path, FOREIGN[0] | {"content-type": "application/json"}, key=key)
        assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")


@pytest.mark.parametrize("media", SIMPLE)
@pytest.mark.parametrize(("method", "path"), JSON_ROUTES)
def test_what_takes_json_takes_nothing_else(keyless: GatewayClient, method: str, path: str, media: str | None) -> None:
    keyless.post("/v1/models/square/versions", json={"version": "1", "source": "square.py"})
    answer = send(keyless, method, path, {"content-type": media} if media else {}, key=None)
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
    assert "application/json" in answer.json()["detail"]


def test_programs_and_our_own_pages_are_let_in(keyless: GatewayClient) -> None:
    host = keyless.base_url.netloc.decode()
    for ours in ({}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, {"origin": f"http://{host}"}):
        answer = keyless.post("/v1/models/square/jobs", json={"x": 4}, headers=ours)
        assert answer.status_code == 202, (ours, answer.text)
    assert keyless.get("/v1/models", headers=FOREIGN[0]).status_code == 200, "a link may lead here"


def test_an_allowed_origin_is_let_in_and_no_other() -> None:
    head = {b"host": b"gw:8080", b"sec-fetch-site": b"cross-site", b"origin": b"https://app.example"}
    assert not is_cross_site(head, ["https://app.example"])
    assert is_cross_site(head, ["https://other.example"])
    assert is_cross_site(head, [])


def test_the_routes_of_this_page_are_those_of_the_gateway() -> None:
    assert set(JSON_ROUTES) <= set(CHANGING)
    assert len(CHANGING) >= 20
    assert Path(__file__).name in Path("docs/production/security.md").read_text()
