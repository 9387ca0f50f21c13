"""TorchServe's management: what its clients send is answered in its words, and done with our own changes of models."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import psutil
import pytest

from tests import archives
from tests.eventually import eventually
from tests.extensions.torchserve.acceptance.management_stack import (
    ANY_HOST,
    ArchiveServer,
    ManagementClient,
    archive_server,
    management,
    model_store,
    status,
    with_worker,
    without_workers,
)

KEYS = [
    "modelName",
    "modelVersion",
    "modelUrl",
    "runtime",
    "minWorkers",
    "maxWorkers",
    "batchSize",
    "maxBatchDelay",
    "responseTimeout",
    "startupTimeout",
    "maxRetryTimeoutInSec",
    "clientTimeoutInMills",
    "parallelType",
    "parallelLevel",
    "deviceType",
    "continuousBatching",
    "useJobTicket",
    "useVenv",
    "stateful",
    "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec",
    "maxNumSequence",
    "maxSequenceJobQueueSize",
    "loadedAtStartup",
    "workers",
    "jobQueueStatus",
]
NO_METHOD = "Requested method is not allowed, please refer to API document."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("management")
    model_store(found)
    return found


@pytest.fixture(scope="module")
def site() -> Iterator[ArchiveServer]:
    with archive_server() as found:
        yield found


@pytest.fixture(scope="module")
def one(redis_url: str, folder: Path, site: ArchiveServer) -> Iterator[ManagementClient]:
    """The first of two gateways; the store of jobs and that of models are shared with the second."""
    with with_worker(redis_url, folder, site) as found:
        yield found


@pytest.fixture(scope="module")
def two(redis_url: str, folder: Path, one: ManagementClient) -> Iterator[ManagementClient]:
    with management(redis_url, folder, allowed_urls=ANY_HOST) as found:
        yield found


def test_a_model_is_registered_described_scaled_switched_and_unregistered(one: ManagementClient, two: ManagementClient) -> None:
    register = "/models?url=echo1.py&model_name=echo&initial_workers=1&batch_size=4&max_batch_delay=50&response_timeout=7"
    assert one.answer("POST", register) == (200, status('Model "echo" Version: 1.0 registered with 1 initial workers'))
    assert one.main.post("/predictions/echo", json=1).json() == "version 1"

    # Every gateway knows the model at once, and after a restart: it is kept in the store.
    found: list[dict[str, Any]] = eventually(lambda: two.get("/models/echo").json())
    assert [list(found[0]), list(found[0]["workers"][0])] == [
        KEYS,
        ["id", "startTime", "status", "memoryUsage", "pid", "gpu", "gpuUsage"],
    ]
    assert {name: found[0][name] for name in KEYS[:10]} == {
        "modelName": "echo",
        "modelVersion": "1.0",
        "modelUrl": "echo1.py",
        "runtime": "python",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": 4,
        "maxBatchDelay": 50,
        "responseTimeout": 7,
        "startupTimeout": 120,
    }
    slot = found[0]["workers"][0]
    assert (slot["status"], slot["gpu"], slot["gpuUsage"]) == ("READY", False, "N/A")
    assert slot["pid"] > 1
    assert int(slot["id"]) >= 9000
    assert slot["startTime"].endswith("Z")
    assert eventually(lambda: two.get("/models/echo").json()[0]["workers"][0]["memoryUsage"]) > 1_000_000
    assert found[0]["jobQueueStatus"] == {"remainingCapacity": 100, "pendingRequests": 0}
    assert {"modelName": "echo", "modelUrl": "echo1.py"} in two.get("/models").json()["models"]
    assert two.answer("GET", "/v1/models/echo") == (200, {"name": "echo", "ready": True})

    assert two.answer("PUT", "/models/echo?min_worker=2&synchronous=true") == (
        200,
        status("Workers scaled to 2 for model: echo"),
    )
    assert [worker["status"] for worker in one.get("/models/echo/1.0").json()[0]["workers"]] == ["READY", "READY"]
    # What lies within the bounds stays as it is.
    assert one.answer("PUT", "/models/echo/1.0?min_worker=1&max_worker=3&synchronous=true") == (
        200,
        status("Workers scaled to 2 for model: echo, version: 1.0"),
    )
    assert one.answer("PUT", "/models/echo?min_worker=1&max_worker=1") == (202, status("Processing worker updates..."))
    assert eventually(lambda: len(one.get("/models/echo").json()[0]["workers"]) == 1)

    assert one.answer("DELETE", "/models/echo") == (200, status('Model "echo" unregistered'))
    assert [gateway.get("/models/echo").status_code for gateway in (one, two)] == [404, 404]
    assert one.main.post("/predictions/echo", json=1).status_code == 404
    # The same version may be another archive from now on.
    again = {"url": "echo2.py", "model_name": "echo", "initial_workers": "1"}
    assert one.answer("POST", "/models", json=again)[0] == 200
    assert one.main.post("/predictions/echo", json=1).json() == "version 2"
    assert one.answer("DELETE", "/models/echo/1.0")[0] == 200


def test_versions_stand_beside_each_other_and_the_first_is_the_default(one: ManagementClient, folder: Path) -> None:
    for version in ("1.0", "2.0"):
        archives.mar(folder / "store" / f"pair-{version}.mar", archives.files(modelName="pair", modelVersion=version))
        assert one.answer("POST", f"/models?url=pair-{version}.mar") == (200, without_workers("pair", version))
    assert one.answer("POST", "/models?url=pair-1.0.mar") == (
        409,
        {
            "code": 409,
            "type": "ConflictStatusException",
            "message": "Model version 1.0 is already registered for model pair",
        },
    )
    described = one.get("/models/pair/all").json()
    assert [found["modelVersion"] for found in described] == ["1.0", "2.0"]
    assert [found["workers"] for found in described] == [[], []]
    assert [found["minWorkers"] for found in described] == [0, 0]
    assert one.get("/models/pair").json()[0]["modelVersion"] == "1.0"
    assert one.answer("GET", "/models/pair?customized=true") == (
        503,
        {
            "code": 503,
            "type": "ServiceUnavailableException",
            "message": 'Model "pair" has no worker to serve describe request. Please use scale workers API to add workers.',
        },
    )
    assert one.answer("GET", "/v1/models/pair") == (200, {"name": "pair", "ready": False})
    assert one.answer("DELETE", "/models/pair")[1]["message"] == "Cannot remove default version for model pair"
    assert one.answer("DELETE", "/models/pair/1.0")[0] == 403
    default = 'Default version successfully updated for model "pair" to "2.0"'
    assert one.answer("PUT", "/models/pair/2.0/set-default") == (200, status(default))
    assert one.answer("DELETE", "/models/pair/1.0") == (200, status('Model "pair" unregistered'))
    assert [found["modelVersion"] for found in one.get("/models/pair/all").json()] == ["2.0"]
    assert one.answer("DELETE", "/models/pair/2.0")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status_code", "name", "message"),
    [
        ("POST", "/models", 400, "BadRequestException", "Parameter url is required."),
        ("POST", "/models?url=", 404, "ModelNotFoundException", "empty url"),
        ("POST", "/models?url=no.mar", 404, "ModelNotFoundException", "Model not found at: no.mar"),
        ("POST", "/models?url=/etc/passwd", 404, "ModelNotFoundException", "Model not found at: /etc/passwd"),
        ("POST", "/models?url=../x.mar", 404, "ModelNotFoundException", "Relative path is not allowed in url: ../x.mar"),
        (
            "POST",
            "/models?url=file:///etc/passwd",
            404,
            "ModelNotFoundException",
            "Given URL file:///etc/passwd does not match any allowed URL(s)",
        ),
        ("POST", "/models?url=echo1.py&runtime=z", 400, "BadRequestException", "Invalid RuntimeType value: z"),
        ("POST", "/models?url=echo1.py&batch_size=-1", 400, "BadRequestException", "batch_size is -1; it can be 1 to 1024."),
        (
            "POST",
            "/models?url=echo1.py&model_name=a%20b",
            400,
            "BadRequestException",
            "model_name 'a b' must have 1 to 64 letters, digits, '_', '.' or '-' and begin with a letter or digit.",
        ),
        ("GET", "/models/nobody", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("GET", "/models/own/9", 404, "ModelVersionNotFoundException", "Model version: 9 does not exist for model: own"),
        ("PUT", "/models/nobody?min_worker=1", 404, "ModelNotFoundException", "Model not found: nobody"),
        (
            "PUT",
            "/models/own?min_worker=2&max_worker=1",
            400,
            "BadRequestException",
            "max_worker cannot be less than min_worker.",
        ),
        ("PUT", "/models/own?min_worker=-1", 400, "BadRequestException", "min_worker is -1; it can be 0 to 1024."),
        (
            "PUT",
            "/models/own/3/set-default",
            404,
            "ModelVersionNotFoundException",
            "Model version 3 does not exist for model own",
        ),
        ("PUT", "/models/nobody/1/set-default", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("DELETE", "/models/own/5", 404, "ModelVersionNotFoundException", "Model version: 5 does not exist for model: own"),
        ("GET", "/v1/models/nobody", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("OPTIONS", "/models/nobody", 404, "ModelNotFoundException", "Model not found: nobody"),
        ("PATCH", "/models/own", 405, "MethodNotAllowedException", NO_METHOD),
        ("GET", "/", 405, "MethodNotAllowedException", NO_METHOD),
        (
            "GET",
            "/predictions/own",
            404,
            "ResourceNotFoundException",
            "Requested resource is not found, please refer to API document.",
        ),
        ("POST", "/workflows?url=x.war", 404, "WorkflowNotFoundException", "Workflow not found in workflow store: x.war"),
        ("GET", "/workflows/x", 404, "WorkflowNotFoundException", "Workflow not found: x"),
        (
            "GET",
            "/token?type=management",
            404,
            "ResourceNotFoundException",
            "Requested resource is not found, please refer to API document.",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_torchserves_words(
    one: ManagementClient, method: str, path: str, status_code: int, name: str, message: str
) -> None:
    found = one.request(method, path)
    assert found.status_code == status_code
    assert found.json() == {"code": status_code, "type": name, "message": message}
    assert found.text.startswith("{\n  ")
    assert found.text.endswith("}\n")
    assert found.headers["cache-control"] == "no-cache; no-store, must-revalidate, private"
    assert uuid.UUID(found.headers["x-request-id"]).version == 4


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b'{"url":', 400, "not valid JSON"),
        (b'["url"]', 400, "must be a JSON object"),
        (b'{"url": "a.mar", "url": "b.mar"}', 400, "twice"),
        (b"[" * 100 + b"]" * 100, 400, "nested deeper"),
        (b'{"url": "' + b"a" * 100_000 + b'"}', 413, "the limit of this media type"),
    ],
    ids=["malformed", "list", "twice", "deep", "large"],
)
def test_a_body_that_is_no_small_object_is_refused(one: ManagementClient, body: bytes, code: int, words: str) -> None:
    found = one.post("/models", content=body, headers={"content-type": "application/json"})
    assert (found.status_code, found.json()["type"]) == (code, "BadRequestException")
    assert words in found.json()["message"]


def test_a_bad_number_touches_nothing(one: ManagementClient) -> None:
    before = one.get("/models/own").json()[0]["workers"]
    assert one.answer("PUT", "/models/own?min_worker=-1&synchronous=true")[0] == 400
    assert one.get("/models/own").json()[0]["workers"][0]["pid"] == before[0]["pid"]


def test_the_batches_of_a_registered_version_are_changed_while_it_runs(one: ManagementClient, two: ManagementClient) -> None:
    assert one.answer("POST", "/models?url=echo1.py&model_name=batched&initial_workers=1")[0] == 200
    changed = one.answer("PUT", "/models/batched?min_worker=1&batch_size=7&max_batch_delay=0&synchronous=true")
    assert changed == (200, status("Workers scaled to 1 for model: batched"))
    assert [two.get("/models/batched").json()[0][name] for name in ("batchSize", "maxBatchDelay")] == [7, 0]
    assert one.main.post("/predictions/batched", json=1).json() == "version 1"
    assert one.answer("DELETE", "/models/batched")[0] == 200


def test_the_batches_of_a_version_of_the_settings_are_changed_there(one: ManagementClient) -> None:
    code, found = one.answer("PUT", "/models/own?min_worker=1&batch_size=4")
    assert (code, found["type"]) == (409, "ConflictStatusException")
    assert "is one of the settings" in found["message"]


def test_a_queued_job_is_answered_before_its_model_is_unregistered(one: ManagementClient, folder: Path) -> None:
    assert one.answer("POST", "/models?url=held.py&model_name=held&initial_workers=1")[0] == 200
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(one.main.post("/predictions/held", json=7).json()))
    waiting.start()
    assert eventually(lambda: one.main.get("/v1/queues/held").json()["in_flight"])
    unregistered: list[Any] = []
    ending = threading.Thread(target=lambda: unregistered.append(one.answer("DELETE", "/models/held")))
    ending.start()
    assert eventually(lambda: one.get("/models/held").status_code == 404)
    (folder / "open").touch()
    waiting.join(60.0)
    ending.join(60.0)
    assert answers == ["held"]
    assert unregistered == [(200, status('Model "held" unregistered'))]


def test_a_model_of_ones_own_describes_itself_as_it_announced(one: ManagementClient) -> None:
    found = one.get("/models/own?customized=true").json()[0]
    assert list(found) == [*KEYS, "customizedMetadata"]
    assert found["customizedMetadata"]["inputSchema"]
    assert found["loadedAtStartup"] is True
    assert found["modelUrl"] == "own.py"


def test_the_description_and_the_probe_need_nothing(one: ManagementClient) -> None:
    assert one.answer("GET", "/ping") == (200, status("Healthy"))
    assert one.request("OPTIONS", "/").json()["info"]["title"] == "TorchServe APIs"
    assert one.get("/api-description").json()["openapi"] == "3.0.1"
    assert one.request("OPTIONS", "/models/own").json()["info"]["title"] == "RESTful Management API for: own"
    assert one.request("HEAD", "/models").content == b""


def test_a_page_of_another_site_and_a_rebound_name_reach_nothing(one: ManagementClient) -> None:
    asked = one.post("/models?url=echo1.py&model_name=page", headers={"sec-fetch-site": "cross-site"})
    assert asked.status_code == 403
    for flag in ("customized=true", "%63ustomized=true"):
        assert one.get(f"/models/any?{flag}", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert one.get("/models/any", headers={"sec-fetch-site": "cross-site"}).status_code == 404
    assert one.get("/models", headers={"host": "evil.example"}).status_code == 421
    assert "page" not in one.names()


def test_the_model_api_is_off_by_default_and_scaling_is_not(redis_url: str, one: ManagementClient, folder: Path) -> None:
    with management(redis_url, folder, apart=False, model_api=False) as client:
        for method, path in (("POST", "/models?url=echo1.py"), ("DELETE", "/models/own"), ("DELETE", "/models/nobody")):
            code, found = client.answer(method, path)
            assert (code, found["message"]) == (405, NO_METHOD), (method, path)
        assert client.answer("PUT", "/models/own?min_worker=1&synchronous=true")[0] == 200
        # One listener for both: our own routes are there too.
        assert client.get("/v1/models/own").json()["ready"] is True
        assert client.main.post("/predictions/own", json=1).json() == "version own"
        assert client.get("/models/own").json()[0]["modelName"] == "own"
        assert client.get("/models/nobody").json()["type"] == "ModelNotFoundException"


def test_processes_of_one_gateway_share_the_port_of_management(redis_url: str, one: ManagementClient, folder: Path) -> None:
    with management(redis_url, folder, processes=2, allowed_urls="https://a/.*") as client:

        def listeners() -> int:
            children = psutil.Process(client.main.process.pid).children()
            port = client.base_url.port
            return sum(any(c.laddr.port == port for c in child.net_connections("inet")) for child in children)

        assert eventually(lambda: listeners() == 2)
        # Each connection may reach the other process, and both do what the model API is asked for.
        for _ in range(6):
            with httpx2.Client(base_url=client.base_url) as fresh:
                assert fresh.post("/models").json()["message"] == "Parameter url is required."
                assert fresh.get("/models/own").json()[0]["modelName"] == "own"


def test_with_a_key_file_every_caller_needs_the_token_for_it(
    redis_url: str, one: ManagementClient, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "key_file.json"

    def bearer(name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {httpx2.Response(200, content=path.read_bytes()).json()[name]['key']}"}

    log = tmp_path / "log"
    with log.open("w") as written, management(redis_url, folder, key_path=path, log=written) as client:
        (line,) = [line for line in log.read_text().splitlines() if "torchserve_management_listening" in line]
        assert orjson.loads(line)["access"] == f"TorchServe's tokens required, those of {path}"
        refusal = "Token {} failed. Token either incorrect, expired, or not provided correctly"
        for headers in ({}, bearer("inference"), bearer("API"), {"authorization": "Bearer x"}):
            found = client.get("/models", headers=headers)
            assert found.status_code == 400
            assert found.json()["type"] == "InvalidKeyException"
            assert found.json()["message"] == refusal.format("Authorization")
        assert client.get("/models", headers=bearer("management")).status_code == 200
        assert client.get("/ping").status_code == 200
        assert client.main.post("/predictions/own", json=1, headers=bearer("inference")).json() == "version own"
        assert client.main.post("/predictions/own", json=1).status_code >= 400
        assert client.main.get("/v1/models", headers=bearer("inference")).status_code == 200

        old = bearer("management")
        for headers, query in ((bearer("management"), "management"), (bearer("API"), "API"), (bearer("API"), "")):
            refused = client.get(f"/token?type={query}", headers=headers)
            assert (refused.status_code, refused.json()["message"]) == (400, refusal.format("Authentication"))
        renewed = client.get("/token?type=management", headers=bearer("API"))
        assert (renewed.status_code, renewed.content) == (200, b"")
        assert client.get("/models", headers=old).status_code == 400
        assert client.get("/models", headers=bearer("management")).status_code == 200
