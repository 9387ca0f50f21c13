"""Archives that TorchServe's clients register: from the store or from a URL, served, or refused without a trace."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
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

DESCRIBED = """
class Described:
    def initialize(self, context):
        self.batch = context.model_yaml_config["handler"]["greeting"]

    def handle(self, data, context):
        if context.get_request_header(0, "describe") == "True":
            return [{"greeting": self.batch, "sizes": [1, 2]}]
        return [{"got": row["body"]} for row in data]
"""


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


def test_an_archive_is_served_and_says_of_itself_what_its_handler_says(one: ManagementClient, folder: Path) -> None:
    yaml = "minWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 20\nhandler: {greeting: hello}\n"
    content = archives.files(config=yaml, extra={"noop.py": DESCRIBED}, modelName="said")
    archives.mar(folder / "store" / "said.mar", content)
    done = status('Model "said" Version: 1.0 registered with 1 initial workers')
    assert one.answer("POST", "/models?url=said.mar&batch_size=2") == (200, done)
    found = one.get("/models/said?customized=true").json()[0]
    assert found["customizedMetadata"] == {"greeting": "hello", "sizes": [1, 2]}
    # The request stands over the archive's own configuration.
    assert (found["batchSize"], found["maxBatchDelay"]) == (2, 20)
    assert one.main.post("/predictions/said", json={"a": 1}).json() == {"got": {"a": 1}}
    assert one.answer("DELETE", "/models/said")[0] == 200


def test_an_unpacked_archive_is_registered_by_its_folder(one: ManagementClient, folder: Path) -> None:
    archives.folder(folder / "store" / "flat", archives.files(modelName="flat"))
    assert one.answer("POST", "/models?url=flat&initial_workers=1")[0] == 200
    assert one.main.post("/predictions/flat", json={"a": 1}).json() == {"rows": 1}
    assert one.get("/models/flat").json()[0]["modelUrl"] == "flat"
    assert one.answer("DELETE", "/models/flat")[0] == 200


def test_a_model_of_the_settings_may_be_replaced_by_an_archive_of_its_name(one: ManagementClient) -> None:
    assert one.main.post("/predictions/spare", json=1).json() == "version own"
    assert one.answer("DELETE", "/models/spare") == (200, status('Model "spare" unregistered'))
    assert one.answer("POST", "/models?url=echo2.py&model_name=spare&initial_workers=1")[0] == 200
    assert one.main.post("/predictions/spare", json=1).json() == "version 2"


def test_every_change_is_in_the_audit_log_those_that_are_refused_included(one: ManagementClient) -> None:
    for method, path in (
        ("POST", "/models?url=echo1.py&model_name=noted&initial_workers=0"),
        ("PUT", "/models/noted?min_worker=1&synchronous=true"),
        ("PUT", "/models/noted/1.0/set-default"),
        ("GET", "/models/noted"),
        ("PUT", "/models/noted/7.0/set-default"),
        ("DELETE", "/models/noted"),
        ("POST", "/models?url=../store/echo1.py&model_name=noted"),
    ):
        one.request(method, path)
    one.post("/models", json={"url": "nowhere.mar", "model_name": "bodied"})
    acts = one.main.get("/v1/audit?limit=7").json()["data"]
    assert [(act["act"], act["on"], act["outcome"]) for act in reversed(acts)] == [
        ("torchserve register", {}, "done"),
        ("torchserve scale", {"model": "noted"}, "done"),
        ("torchserve set-default", {"model": "noted", "version": "1.0"}, "done"),
        ("torchserve set-default", {"model": "noted", "version": "7.0"}, "refused 404"),
        ("torchserve unregister", {"model": "noted"}, "done"),
        ("torchserve register", {}, "refused 404"),
        ("torchserve register", {}, "refused 404"),
    ]
    assert acts[0]["said"] == {"url": "nowhere.mar", "model_name": "bodied"}
    assert acts[-1]["said"] == {"url": "echo1.py", "model_name": "noted", "initial_workers": "0"}
    assert {act["address"] for act in acts} == {"127.0.0.1"}


def test_a_model_that_cannot_be_loaded_is_not_registered(one: ManagementClient) -> None:
    code, found = one.answer("POST", "/models?url=broken.py&model_name=broken&initial_workers=1")
    assert code == 500
    assert found["message"].startswith("Failed to start workers for model broken version: 1.0. ")
    assert "no such weights" in found["message"]
    assert "broken" not in one.names()


def test_an_archive_is_fetched_from_a_url_that_is_allowed_and_kept_by_its_content(
    one: ManagementClient, two: ManagementClient, site: ArchiveServer, folder: Path
) -> None:
    content = archives.mar(folder / "far.mar", archives.files(modelName="far", modelVersion="3.1")).read_bytes()
    url = site.put("far.mar", content)
    assert one.answer("POST", "/models", params={"url": url}) == (200, without_workers("far", "3.1"))
    assert eventually(lambda: two.get("/models/far").json()[0])["modelUrl"] == url
    (kept,) = (folder / "store" / "downloads").glob("*/far.mar")
    assert kept.read_bytes() == content
    # The second gateway finds it there; its own rules allow no URL.
    assert two.answer("POST", "/models", params={"url": url, "model_name": "far2"}) == (
        404,
        {
            "code": 404,
            "type": "ModelNotFoundException",
            "message": f"Given URL {url} does not match any allowed URL(s)",
        },
    )
    assert one.answer("POST", "/models", params={"url": url, "model_name": "far2"})[0] == 200
    assert len(list((folder / "store" / "downloads").iterdir())) == 1
    for name in ("far", "far2"):
        assert one.answer("DELETE", f"/models/{name}")[0] == 200


def test_a_host_that_no_pattern_spells_is_reached_at_public_addresses_alone(
    two: ManagementClient, site: ArchiveServer, folder: Path
) -> None:
    url = site.put("open/inside.mar", archives.mar(folder / "inside.mar").read_bytes())
    code, found = two.answer("POST", "/models", params={"url": url})
    assert (code, found["type"]) == (400, "DownloadArchiveException")
    assert found["message"] == f"Failed to download archive from: {url} (127.0.0.1 has no public address)"
    assert "/open/inside.mar" not in site.asked


@pytest.mark.parametrize(
    "kind", ["truncated", "climbing", "linked", "handlerless", "absent", "redirected", "large", "no archive"]
)
def test_a_bad_archive_is_refused_and_leaves_nothing(
    one: ManagementClient, site: ArchiveServer, folder: Path, tmp_path: Path, kind: str
) -> None:
    good = archives.mar(tmp_path / "good.mar").read_bytes()
    path = tmp_path / "bad.mar"
    bodies: dict[str, Callable[[], bytes]] = {
        "truncated": lambda: good[: len(good) // 2],
        "climbing": lambda: archives.mar(path, archives.files(extra={"../../evil.py": "x"})).read_bytes(),
        "linked": lambda: archives.zip_special(path, "link", 0o120000).read_bytes(),
        "handlerless": lambda: archives.mar(path, archives.files(handler="nothing.py")).read_bytes(),
        "large": lambda: archives.mar(path, archives.files(extra={"x": os.urandom(200_000)})).read_bytes(),
        "no archive": lambda: b"<html>sign in</html>",
    }
    url = site.put(f"{kind.replace(' ', '-')}.mar", bodies[kind]()) if kind in bodies else f"{site.address}/{kind}.mar"
    site.redirects["/redirected.mar"] = site.put("elsewhere.mar", good)
    code, found = one.answer("POST", "/models", params={"url": url, "model_name": "bad", "initial_workers": "1"})
    assert code == 400, found
    assert found["type"] in ("DownloadArchiveException", "InvalidModelException")
    assert str(folder) not in found["message"]
    assert "bad" not in one.names()
    downloads = folder / "store" / "downloads"
    assert [entry.name for entry in downloads.iterdir() if (entry / Path(url).name).exists()] == []
    assert not [entry for entry in downloads.iterdir() if entry.name.startswith(".part")]
    assert not list(folder.rglob("evil.py"))


def test_a_gateway_that_is_killed_while_it_registers_leaves_nothing_behind(
    redis_url: str, one: ManagementClient, site: ArchiveServer, folder: Path
) -> None:
    content = archives.mar(folder / "cut.mar", archives.files(modelName="cut")).read_bytes()
    url = site.put("cut.mar", content)
    site.stalled.add("/cut.mar")
    assert one.answer("POST", "/models?url=echo1.py&model_name=kept")[0] == 200
    with management(redis_url, folder, allowed_urls=f"{site.address}/.*") as client:
        # A gateway that has just been started knows what others registered.
        assert "kept" in client.names()
        asked = threading.Thread(target=lambda: _ignored(client, url))
        asked.start()
        assert site.begun.wait(30.0)
        client.main.kill()
        asked.join(30.0)
    site.release.set()
    site.stalled.clear()
    assert [name for name in one.names() if name in ("cut", "kept")] == ["kept"]
    assert not list((folder / "store" / "downloads").glob("*/cut.mar/*"))
    # What it left is no obstacle to the next.
    assert one.answer("POST", "/models", params={"url": url})[0] == 200
    assert [one.answer("DELETE", f"/models/{name}")[0] for name in ("cut", "kept")] == [200, 200]


def _ignored(client: ManagementClient, url: str) -> None:
    try:
        client.post("/models", params={"url": url})
    except httpx2.TransportError:
        return
