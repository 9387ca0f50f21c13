"""One owner's inputs lie on a host that does not answer, and the batches of another owner run on."""

from __future__ import annotations

import os
import signal
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from redis import Redis

from tests.acceptance.gateway_process import gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, WorkerProcess
from tests.security.keyed import make

SLOW = make("slow", "submit", "read", owner="slow")
BOSS = make("boss", "manage")
MODEST = make("modest", "submit", "read", owner="modest")
PNG = b"\x89PNG"
# More than the places of one owner, which are 32.
JOBS = 40
TURNS = 12
# On a busy machine; a batch that waits for files leaves one.
LEAST_TURNS = 3
ANSWER_S = 60.0


class Host(BaseHTTPRequestHandler):
    """Keeps each request until the test releases its path, or all of them."""

    asked: ClassVar[Counter[str]] = Counter()
    released: ClassVar[dict[str, threading.Event]] = {}

    def do_GET(self) -> None:
        self.asked[self.path] += 1
        self.released[self.path.partition("?")[0]].wait(ANSWER_S)
        self.send_response(200)
        for name, value in {"content-length": str(len(PNG)), "content-type": "image/png"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(PNG)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def host() -> Iterator[str]:
    Host.asked.clear()
    Host.released.update({path: threading.Event() for path in ("/never", "/late")})
    server = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    for event in Host.released.values():
        event.set()
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def stack(redis_url: str, folder: Path, host: str, **changes: int) -> Iterator[httpx2.Client]:
    """A gateway and a worker, in whose batches the jobs of all owners meet."""
    model = {"source": f"{HANDLERS / 'given.py'}:fetched", "input_urls": [f"{host}/"], "max_attempts": 1, **changes}
    env = {"PENSTOCK_KEYS": SLOW.toml + MODEST.toml + BOSS.toml}
    with (
        gateway_process(redis_url, folder / "g", models={"fetched": model}, env=env) as client,
        WorkerProcess(redis_url, folder / "w", {"fetched": model}),
    ):
        eventually(lambda: client.get("/v1/models/fetched", headers=MODEST.header).json()["ready"], timeout_s=ANSWER_S)
        yield client


def submit(client: httpx2.Client, url: str) -> str:
    answer = client.post("/v1/models/fetched/jobs", headers=SLOW.header, json={"image": url})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["links"]["self"])


def record(client: httpx2.Client, link: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(link, headers=SLOW.header).json()
    return found


def predict(client: httpx2.Client) -> None:
    body = {"image": b64encode(PNG).decode()}
    answer = client.post("/predictions/fetched", headers=MODEST.header, json=body, timeout=ANSWER_S)
    assert (answer.status_code, answer.json()[0]) == (200, len(PNG)), answer.text


def test_an_owner_s_slow_host_holds_up_no_batch_of_another_owner(fresh_redis: str, tmp_path: Path, host: str) -> None:
    """Regression: each batch waited for the files of all its items, so one such job a second left 0.6 answers a second."""
    with stack(fresh_redis, tmp_path, host) as client:
        predict(client)
        jobs = [submit(client, f"{host}/never?{number}") for number in range(JOBS)]
        eventually(lambda: Host.asked)
        turns = 0
        while turns < TURNS and record(client, jobs[0])["status"] != "failed":
            jobs.append(submit(client, f"{host}/never?{len(jobs)}"))
            predict(client)
            turns += 1
        assert turns >= LEAST_TURNS, "answers before the first of those jobs had run out of its time"
        eventually(lambda: record(client, jobs[0])["status"] == "failed", timeout_s=ANSWER_S)
        first = record(client, jobs[0])
        assert (first["error"]["code"], first["attempts"]) == ("input_url_failed", 1)
        assert "did not arrive within 10 s" in first["error"]["message"]


def test_a_host_that_answers_late_is_asked_once_and_no_attempt_is_spent(fresh_redis: str, tmp_path: Path, host: str) -> None:
    with stack(fresh_redis, tmp_path, host) as client:
        job = submit(client, f"{host}/late")
        with closing(Redis.from_url(fresh_redis)) as store:
            eventually(lambda: store.hget("ps:{fetched}:counters", "redelivered:reading"), timeout_s=ANSWER_S)
        Host.released["/late"].set()
        eventually(lambda: record(client, job)["status"] == "succeeded", timeout_s=ANSWER_S)
        assert (record(client, job)["attempts"], Host.asked["/late"]) == (1, 1)


def test_several_slots_and_a_kill_of_their_processes_spend_no_attempt(fresh_redis: str, tmp_path: Path, host: str) -> None:
    """What was read is lost with its process, so it is read again."""
    with stack(fresh_redis, tmp_path, host, slots=2, max_attempts=3) as client, closing(Redis.from_url(fresh_redis)) as store:
        job = submit(client, f"{host}/late")
        eventually(lambda: Host.asked["/late"] and record(client, job)["status"] == "queued", timeout_s=ANSWER_S)
        for slot in slots(client):
            os.kill(slot["pid"], signal.SIGKILL)
        asked = Host.asked["/late"]
        eventually(lambda: Host.asked["/late"] > asked, timeout_s=ANSWER_S)
        Host.released["/late"].set()
        eventually(lambda: record(client, job)["status"] == "succeeded", timeout_s=ANSWER_S)
        charged = store.hmget(f"ps:{{fetched}}:job:{record(client, job)['id'].partition('-')[0]}", "attempts", "crashes")
        # A kill is charged to the job only where it hits a batch, in which the job is for a moment.
        assert int(charged[0] or 0) - int(charged[1] or 0) == 1


def slots(client: httpx2.Client) -> list[dict[str, Any]]:
    found = client.get("/v1/workers", headers=BOSS.header).json()
    return [slot for worker in found["data"] for slot in worker["slots"]]
