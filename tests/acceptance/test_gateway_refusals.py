"""Bad requests to every route of the OpenAPI document: each answer is a problem with the right status, never a traceback."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.aio import AsyncStore
from penstock.extensions.oip.gateway.infer_answer import speaks_oip
from penstock.extensions.openai.gateway.views import speaks_openai
from penstock.gateway.app import Gateway
from penstock.gateway.asgi.connection import Lifetime
from penstock.settings.tables import Settings
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.eventually import eventually

MODELS = {"square": {"source": "square.py:Square"}}
LIMITS = {"max_json_bytes": 50_000, "max_raw_bytes": 100_000}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
UNKNOWN_ID = "01k9xw3c5t8ze2m4v6b7n0q1rs-square"
_SERIAL = UNKNOWN_ID.partition("-")[0]
OTHER_IDS = {
    "file_id": f"file-{_SERIAL}",
    "batch_id": f"batch_{_SERIAL}",
    "run_id": _SERIAL,
    "prediction_id": _SERIAL,
    "key_id": "k",
    "worker": "nobody",
}
POST = b"POST /predictions/square HTTP/1.1\r\nHost: localhost\r\n"
DEEP = b"[" * 65 + b"]" * 65
BAD_NAMES = ("..%2f..%2fetc%2fpasswd", "%00", "a%0d%0aset-cookie:b", "%c0%af", "x" * 300, "%F0%9F%92%A9", "-")


def _routes() -> dict[str, dict[str, Any]]:
    nowhere = AsyncStore("redis://127.0.0.1:1")
    gateway = Gateway(Settings.load(None, {}), store=nowhere, blobs=LocalBlobs(Path("nowhere")), lifetime=Lifetime())
    paths: dict[str, dict[str, Any]] = gateway.parts.document()["paths"]
    return paths


ROUTES = _routes()
# The Open Inference Protocol has inputs, statuses and an order of checks of its own: test_open_inference.py.
OWN = {path: item for path, item in ROUTES.items() if not speaks_oip(path)}
# Loads a version, which is no job.
MAKES = "/v1/models/{model}/versions"
SUBMITS = [path for path, item in OWN.items() if "requestBody" in item.get("post", {}) and "{model}" in path and path != MAKES]
# A path for many inputs takes a list of them, and limits of its own: test_submit_many.py. A mount of Cog's takes an object
# that holds the input: test_cog.py.
OF_ONE = [path for path in SUBMITS if not path.endswith(":batch") and not path.startswith("/cog/")]
WITH_ID = [path for path in ROUTES if "{job_id}" in path]
WITH_MODEL = [path for path in OWN if "{model}" in path]
OPERATIONS = [(method.upper(), path) for path, item in ROUTES.items() for method in item]


@pytest.fixture(scope="module")
def client(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, tmp_path_factory.mktemp("gateway"), models=MODELS, **LIMITS) as client:
        Hand(redis_url).announce()
        eventually(lambda: client.get("/v1/models/square").json()["versions"]["1"].get("input_schema"))
        yield client


def filled(path: str, **values: str) -> str:
    known = {"model": "square", "version": "1", "job_id": UNKNOWN_ID, "code": "overloaded", "place": "0", **OTHER_IDS}
    # Replicate's routes name a model by an owner, which is a label, and a name.
    known |= {"owner": "local", "name": "square", **values}
    return re.sub(r"\{(\w+)\}", lambda found: known[found[1]], path)


def check_problem(answer: httpx2.Response, *statuses: int) -> dict[str, Any]:
    assert answer.status_code in statuses, answer.text
    path = answer.request.url.path
    foreign = speaks_openai(path) or speaks_oip(path)
    assert answer.headers["content-type"] == f"application/{'json' if foreign else 'problem+json'}"
    problem: dict[str, Any] = answer.json()
    assert not speaks_openai(path) or {"message", "type", "param", "code"} == problem["error"].keys()
    assert not speaks_oip(path) or isinstance(problem["error"], str)
    assert problem["status"] == answer.status_code
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert {"type", "title", "code", "detail"} <= problem.keys()
    assert not re.search(r"Traceback|File \"|\.py\b|redis://|unix://", answer.text)
    return problem


def test_the_document_lists_the_live_routes_and_each_models_own(client: httpx2.Client) -> None:
    live = client.get("/openapi.json").json()
    assert ROUTES.keys() <= live["paths"].keys()
    content = live["paths"]["/predictions/square"]["post"]["requestBody"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/square.1.input"}
    assert live["components"]["schemas"]["square.1.input"]["required"] == ["x"]


@pytest.mark.parametrize("path", ROUTES)
def test_a_wrong_method_is_told_the_right_ones(client: httpx2.Client, path: str) -> None:
    right = {method.upper() for method in ROUTES[path]}
    for method in set(METHODS) - right:
        answer = client.request(method, filled(path))
        if (method, path) == ("DELETE", "/v1/jobs/events"):
            # DELETE is a method of one job, so the last part is taken for its id.
            check_problem(answer, 400)
            continue
        check_problem(answer, 405)
        assert set(answer.headers["allow"].split(", ")) == right | ({"HEAD"} if "GET" in right else set())


@pytest.mark.parametrize("path", [path for path, methods in ROUTES.items() if "get" in methods])
def test_a_head_is_answered_like_a_get_without_the_body(client: httpx2.Client, path: str) -> None:
    job = client.post("/v1/models/square/jobs", json={"x": 4}).json()["id"]
    url = filled(path, job_id=job)
    with client.stream("GET", url) as got:
        head = client.head(url)
        assert (head.status_code, head.headers.get("content-type")) == (got.status_code, got.headers.get("content-type"))
    assert head.content == b""


@pytest.mark.parametrize("path", WITH_ID)
@pytest.mark.parametrize("job_id", [*BAD_NAMES, UNKNOWN_ID, UNKNOWN_ID.upper(), "01k9xw3c5t8ze2m4v6b7n0q1rs-nobody"])
def test_an_id_that_is_none_of_ours_is_refused(client: httpx2.Client, path: str, job_id: str) -> None:
    for method in ROUTES[path]:
        check_problem(client.request(method.upper(), filled(path, job_id=job_id)), 400, 404)


@pytest.mark.parametrize(
    ("path", "model"),
    # The route that makes a model accepts valid names that are not taken.
    [(path, model) for path in WITH_MODEL for model in [*BAD_NAMES, "squre", "Square"] if path != MAKES or model in BAD_NAMES],
)
def test_an_unknown_model_is_not_found(client: httpx2.Client, path: str, model: str) -> None:
    for method in ROUTES[path]:
        problem = check_problem(client.request(method.upper(), filled(path, model=model), json={"x": 4}), 404)
        if model == "squre":
            assert problem["hint"] == "Did you mean square?"


@pytest.mark.parametrize("path", [path for path in WITH_MODEL if "{version}" in path])
def test_an_unknown_version_is_not_found(client: httpx2.Client, path: str) -> None:
    for method in ROUTES[path]:
        problem = check_problem(client.request(method.upper(), filled(path, version="9"), json={"x": 4}), 404)
        assert problem["hint"] == "Its versions: 1."


@pytest.mark.parametrize("path", OF_ONE)
@pytest.mark.parametrize("body", [b'{"x": "four"}', b"{}", b"[]", b'"x"', b"null"])
def test_an_input_of_the_wrong_type_is_told_with_pointers(client: httpx2.Client, path: str, body: bytes) -> None:
    problem = check_problem(client.post(filled(path), content=body), 422)
    assert problem["code"] == "invalid_input"
    assert all({"pointer", "detail"} == fault.keys() for fault in problem["errors"])


@pytest.mark.parametrize("path", OF_ONE)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 65 + b"]" * 65,
        b"[" * 40_000,
        b"{",
        b"",
        b'{"x": NaN}',
        b'{"x": 1e999}',
        b'{"x":' + b"9" * 5_000 + b"}",
        b'"\xff"',
    ],
    ids=["deep", "very-deep", "open", "empty", "nan", "infinite", "huge-number", "not-utf8"],
)
def test_a_body_that_is_no_acceptable_json_is_refused(client: httpx2.Client, path: str, body: bytes) -> None:
    check_problem(client.post(filled(path), content=body, headers={"content-type": "application/json"}), 400)


@pytest.mark.parametrize("path", OF_ONE)
@pytest.mark.parametrize(("media", "size"), [("application/json", 50_001), ("image/png", 100_001), ("image/png", 5_000_000)])
def test_a_body_over_the_limit_is_refused(client: httpx2.Client, path: str, media: str, size: int) -> None:
    problem = check_problem(client.post(filled(path), content=b" " * size, headers={"content-type": media}), 413)
    assert problem["code"] == "too_large"


@pytest.mark.parametrize("path", OF_ONE)
def test_a_body_of_unknown_length_is_counted(client: httpx2.Client, path: str) -> None:
    chunks = (b" " * 1_000 for _ in range(51))
    check_problem(client.post(filled(path), content=chunks, headers={"content-type": "application/json"}), 413)


@pytest.mark.parametrize("path", SUBMITS)
@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
    ids=["form", "text", "gzip"],
)
def test_a_media_type_or_encoding_not_taken_is_refused(client: httpx2.Client, path: str, headers: dict[str, str]) -> None:
    check_problem(client.post(filled(path), content=b"x=4", headers=headers), 415)


@pytest.mark.parametrize("path", SUBMITS)
@pytest.mark.parametrize("query", ["deadline_s=0", "deadline_s=x", "deadline_s=1e9", "priority=high", "deadlin_s=1", "%ff=1"])
def test_an_option_that_cannot_be_meant_is_refused(client: httpx2.Client, path: str, query: str) -> None:
    check_problem(client.post(f"{filled(path)}?{query}", json={"x": 4}), 400)


@pytest.mark.parametrize("path", SUBMITS)
def test_an_idempotency_key_too_long_is_refused(client: httpx2.Client, path: str) -> None:
    check_problem(client.post(filled(path), json={"x": 4}, headers={"idempotency-key": "k" * 256}), 400)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=100000", "status=done", "after=x", "model=nobody"])
def test_a_list_filter_that_cannot_be_meant_is_refused(client: httpx2.Client, query: str) -> None:
    check_problem(client.get(f"/v1/jobs?{query}"), 400, 404)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("headers", [{f"h{i}": "a" for i in range(101)}, {"h": "a" * 17_000}], ids=["many", "large"])
def test_too_many_or_too_large_headers_are_refused(
    client: httpx2.Client, method: str, path: str, headers: dict[str, str]
) -> None:
    check_problem(client.request(method, filled(path), headers=headers), 431)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_a_foreign_host_name_is_refused(client: httpx2.Client, method: str, path: str) -> None:
    answer = client.request(method, filled(path), headers={"host": "rebound.example"})
    check_problem(answer, 421)
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("path", ["/nothing", "/predictions", "/predictions/", "/v1/models//jobs", "/docs/", "/v1/jobs/"])
def test_an_unknown_path_is_a_problem_too(client: httpx2.Client, path: str) -> None:
    check_problem(client.get(path), 404)


def test_an_unknown_path_of_the_dashboard_is_a_page_that_leads_back(client: httpx2.Client) -> None:
    answer = client.get("/ui/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert 'href="/"' in answer.text


def test_a_request_id_that_could_break_a_log_is_replaced(client: httpx2.Client) -> None:
    problem = check_problem(client.get("/nothing", headers={"x-request-id": "two words"}), 404)
    assert re.fullmatch(r"[0-9a-f]{32}", problem["request_id"])


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400),
        (b"not http at all\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: localhost\r\nx: " + b"a" * 200_000, 431),
    ],
    ids=["two-framings", "two-lengths", "garbage", "endless-head"],
)
def test_a_request_that_is_not_proper_http_is_answered_once_and_closed(
    client: httpx2.Client, request_bytes: bytes, status: int
) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port or 80), timeout=5.0) as connection:
        connection.sendall(request_bytes)
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"application/problem+json" in answer


def test_after_all_this_the_gateway_still_answers_and_its_scrape_is_small(client: httpx2.Client) -> None:
    scrape = client.get("/metrics")
    assert scrape.status_code == 200
    assert len(scrape.text.splitlines()) < 2_000
    assert "passwd" not in scrape.text


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz", "/ping", "/v2/health/live", "/v2/health/ready"])
def test_head_on_a_probe_answers_like_get_without_a_body(client: httpx2.Client, path: str) -> None:
    get, head = client.get(path), client.head(path)
    assert (head.status_code, head.headers["content-type"]) == (get.status_code, get.headers["content-type"])
    assert head.content == b""
    # If HEAD had sent a body, the client would read that body as the start of this response on the same connection.
    assert client.get(path).status_code == get.status_code


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path in OPERATIONS if path.startswith("/v1/")])
def test_an_unknown_query_parameter_is_refused_with_the_known_ones(client: httpx2.Client, method: str, path: str) -> None:
    problem = check_problem(client.request(method, filled(path), params={"wiat": "20"}, json={"x": 4}), 400)
    assert "unknown query parameter 'wiat'; this path takes " in problem["detail"]


def test_probes_do_not_mind_what_their_callers_add(client: httpx2.Client) -> None:
    assert client.get("/livez?now=1").status_code == 200


def test_the_type_of_a_problem_leads_to_its_cause_and_what_to_do(client: httpx2.Client) -> None:
    problem = check_problem(client.get("/v1/models/nowhere"), 404)
    page = client.get(problem["type"])
    assert (page.status_code, page.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert page.text.startswith(f"{problem['title']} (not_found; status 404)\n\nCause: ")
    assert "penstock models" in page.text
    facts = client.get(problem["type"], headers={"accept": "application/json"}).json()
    assert {facts["code"], facts["title"]} == {"not_found", problem["title"]}
    assert facts["cause"] in page.text
    assert facts["action"] in page.text
    assert facts["manual"] == "docs/production/troubleshooting.md#it-does-not-exist-not_found"
    assert check_problem(client.get("/problems/nothing"), 404)["hint"].startswith("Known codes: bad_archive, ")
