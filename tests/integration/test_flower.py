"""`penstock flower` runs beside `penstock up`, on the embedded store's socket, as a user who may not touch a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from penstock.broker.server.embedded import EmbeddedServer, flower_url
from penstock.broker.server.users import FLOWER, passwords_in
from tests.acceptance.test_cli import SQUARE, Up, started, stopped
from tests.eventually import eventually
from tests.monitoring.flower import depths, flower, tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Up]:
    (folder / "penstock.toml").write_text(f'[models.square]\nsource = "{SQUARE}"\n')
    made = started(folder)
    yield made
    assert stopped(made) == 0


@pytest.fixture(scope="module")
def watcher(up: Up, folder: Path) -> Iterator[httpx2.Client]:
    with flower(folder) as client:
        yield client


def test_it_finds_the_store_that_runs_here_and_shows_workers_tasks_and_queues(up: Up, watcher: httpx2.Client) -> None:
    eventually(lambda: watcher.get("/api/workers", params={"refresh": "1"}).json(), timeout_s=60.0)
    assert depths(watcher) == {f"penstock.{{square}}{name}": 0 for name in ("", " interactive", " late", " bulk")}

    def first_seen() -> Any:
        """Submit a job, and return what Flower shows: nothing before Flower asks for events, seconds after its start."""
        httpx2.post(f"{up.ready['url']}/v1/models/square/jobs", json={"x": 3}, timeout=30.0)
        return next(iter(tasks(watcher).values()), None)

    assert eventually(first_seen, timeout_s=60.0)["name"] == "penstock.infer.square"
    job = httpx2.post(f"{up.ready['url']}/v1/models/square/jobs", json={"x": 3}, timeout=30.0).json()["id"]
    assert eventually(lambda: tasks(watcher).get(job))["name"] == "penstock.infer.square"
    assert "flower_worker_online" in watcher.get("/metrics").text


def test_nobody_enters_without_the_login_and_nothing_can_be_changed_with_it(watcher: httpx2.Client) -> None:
    for path in ("/", "/broker", "/tasks", "/api/workers"):
        assert httpx2.get(f"{watcher.base_url}{path}").status_code == 401, path
    [worker] = eventually(lambda: watcher.get("/api/workers").json())
    assert watcher.post(f"/api/worker/shutdown/{worker}").status_code == 403
    assert watcher.post("/api/task/send-task/penstock.infer", json={"args": ["square", 1]}).status_code == 403


def test_it_needs_no_right_that_its_user_lacks(up: Up, watcher: httpx2.Client, folder: Path) -> None:
    eventually(lambda: watcher.get("/api/workers", params={"refresh": "1"}).json(), timeout_s=60.0)
    assert watcher.get("/broker").status_code == 200
    address = json.loads((folder / ".penstock" / "up.json").read_text())["redis_url"]
    with Redis.from_url(address) as admin:
        assert [entry for entry in admin.acl_log() if entry["username"] == FLOWER] == []
        assert FLOWER in {client["user"] for client in admin.client_list()}


WRITES = [
    ("LPUSH", "penstock.{square}", "x"),
    ("DEL", "penstock.{square}"),
    ("SET", "ps:models", "x"),
    ("HGETALL", "ps:workers"),
    ("HGETALL", "ps:{square}:counters"),
    ("GET", "ps:{square}:in:x"),
    ("FCALL", "penstock_stats", 1, "ps:{square}:"),
    ("INFO",),
    ("KEYS", "*"),
    ("FLUSHALL",),
    ("CONFIG", "GET", "*"),
]


@pytest.mark.parametrize("command", WRITES, ids=lambda command: " ".join(map(str, command[:2])))
def test_its_user_reads_lengths_and_names_and_nothing_else(up: Up, folder: Path, command: tuple[str | int, ...]) -> None:
    with Redis.from_url(flower_url(folder / ".penstock")) as redis:
        assert redis.llen("penstock.{square}") == 0
        assert redis.hkeys("ps:models") == [b"square"]
        with pytest.raises(NoPermissionError):
            redis.execute_command(*command)


def test_a_store_of_an_older_version_gets_the_missing_password_and_keeps_the_others(tmp_path: Path) -> None:
    file = tmp_path / "passwords.json"
    file.write_text(json.dumps({"admin": "a" * 32, "gateway": "g" * 32, "worker": "w" * 32}))
    passwords = passwords_in(file)
    assert (passwords.admin, passwords.gateway, passwords.worker) == ("a" * 32, "g" * 32, "w" * 32)
    assert len(passwords.flower) == 32
    assert passwords_in(file) == passwords


def test_gateway_and_worker_may_ask_how_the_store_is_and_set_nothing_of_it(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, fsync="everysec", users=True) as server:
        for url in (server.gateway_url, server.worker_url):
            with Redis.from_url(url) as user:
                assert user.info("memory")["maxmemory_policy"] == "noeviction"
                with pytest.raises(NoPermissionError):
                    user.config_set("maxmemory-policy", "allkeys-lru")
