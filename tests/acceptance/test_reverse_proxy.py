"""Two gateways behind the example's nginx: TLS, streams and uploads pass as they come, and one gateway may be lost."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from penstock.client.sync import Client
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.acceptance.nginx import Proxy, nginx, nginx_program
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOSS, keyed_gateway

KEY = f"{ALICE.id}.{ALICE.secret}"
JSON = {"content-type": "application/json", **ALICE.header}


class Site:
    """Gateways by name, the proxy before them, and a client without any patience: it repeats nothing."""

    def __init__(self, gateways: list[GatewayClient], proxy: Proxy, client: httpx2.Client) -> None:
        self.gateways, self.proxy, self.client = gateways, proxy, client

    def patient_client(self) -> Client:
        return Client(self.proxy.url, KEY, transport=self.proxy.transport())


@pytest.fixture
def site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    nginx_program()
    with (
        keyed_gateway(redis_url, tmp_path / "a", keys=(ALICE, BOSS)) as first,
        keyed_gateway(redis_url, tmp_path / "b", keys=(ALICE, BOSS)) as second,
        nginx(tmp_path, [first.base_url.netloc.decode(), second.base_url.netloc.decode()]) as proxy,
        httpx2.Client(base_url=proxy.url, transport=proxy.transport(), timeout=30.0) as client,
    ):
        Hand(redis_url).announce()
        for gateway in (first, second):
            eventually(lambda gateway=gateway: gateway.get("/v1/models/square", headers=ALICE.header).json()["ready"])  # type: ignore[misc]
        yield Site([first, second], proxy, client)


def test_the_example_passes_through_what_the_gateways_say(site: Site, redis_url: str) -> None:
    """TLS, keys, streams as they come, uploads as they come, and no figures."""
    assert site.client.get("/v1/models", headers=ALICE.header).status_code == 200
    assert site.client.get("/v1/models").status_code == 401
    assert site.client.get("/metrics", headers=BOSS.header).status_code == 404
    with httpx2.Client(base_url=f"http://localhost:{site.proxy.port}") as plain:
        assert plain.get("/v1/models").status_code == 400
    follow_a_job(site, redis_url)
    refuse_a_large_upload_before_it_is_sent(site)


def follow_a_job(site: Site, redis_url: str) -> None:
    hand = Hand(redis_url)
    job = site.client.post("/v1/models/square/jobs", content=b'{"x": 4}', headers=JSON).json()["id"]
    with site.client.stream("GET", f"/v1/jobs/{job}/events", headers=ALICE.header) as stream:
        data = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        # A proxy that gathers a stream would hand nothing on before the job has ended.
        assert next(data)["status"] == "queued"
        hand.finish(hand.take())
        assert list(data)[-1]["status"] == "succeeded"


def refuse_a_large_upload_before_it_is_sent(site: Site) -> None:
    head = (
        f"POST /v1/models/square/jobs HTTP/1.1\r\nhost: localhost:{site.proxy.port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: 500000000\r\n\r\n"
    )
    with (
        socket.create_connection(("127.0.0.1", site.proxy.port), timeout=10.0) as plain,
        site.proxy.trust.wrap_socket(plain, server_hostname="localhost") as upload,
    ):
        upload.sendall(head.encode())
        # One that gathers uploads would wait for the rest.
        assert upload.recv(1024).startswith(b"HTTP/1.1 413")


def under_load(site: Site, works: list[Callable[[Counter[str]], None]], disturb: Callable[[], None]) -> Counter[str]:
    """Each work again and again, while and after something is disturbed."""
    ended, stopping = Counter[str](), threading.Event()

    def repeat(work: Callable[[Counter[str]], None]) -> None:
        while not stopping.is_set():
            work(ended)

    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    time.sleep(0.7)
    disturb()
    time.sleep(1.5)
    stopping.set()
    for thread in threads:
        thread.join(60.0)
    return ended


def test_a_gateway_is_stopped_under_load_and_no_request_fails(site: Site, redis_url: str) -> None:
    def look(ended: Counter[str]) -> None:
        ended[str(site.client.get("/v1/models", headers=ALICE.header).status_code)] += 1

    def submit(ended: Counter[str]) -> None:
        ended[str(site.client.post("/v1/models/square/jobs", content=b'{"x": 4}', headers=JSON).status_code)] += 1

    def stop() -> None:
        site.gateways[0].process.send_signal(signal.SIGTERM)
        assert site.gateways[0].process.wait(timeout=60.0) == 0
        site.gateways[0].killed = True

    ended = under_load(site, [look, look, submit, submit], stop)
    assert set(ended) == {"200", "202"}, ended


def test_a_gateway_is_killed_under_load_and_clients_that_repeat_see_no_error(site: Site, redis_url: str) -> None:
    """What the proxy may repeat it repeats; what only the client may repeat the client does; nothing is done twice."""
    accepted: list[str] = []

    def work(ended: Counter[str]) -> None:
        with site.patient_client() as client:
            for number in range(20):
                assert client.submit("square", {"x": number}).result(timeout_s=30.0) == {"y": 16}
                ended["results"] += 1

    def look(ended: Counter[str]) -> None:
        ended[f"GET {site.client.get('/v1/models', headers=ALICE.header).status_code}"] += 1

    def post_once(ended: Counter[str]) -> None:
        answer = site.client.post("/v1/models/square/jobs?tags=once", content=b'{"x": 4}', headers=JSON)
        ended[f"POST {answer.status_code}"] += 1
        if answer.status_code == 202:
            accepted.append(answer.json()["id"])

    with Hand(redis_url).serving():
        ended = under_load(site, [work, work, look, post_once], site.gateways[0].kill)
    assert ended["results"] >= 40
    assert {name for name in ended if name.startswith("GET")} == {"GET 200"}
    assert {name for name in ended if name.startswith("POST")} <= {"POST 202", "POST 502"}
    stored = [job["id"] for job in all_tagged(site, "once")]
    assert set(accepted) <= set(stored)
    assert len(stored) <= ended["POST 202"] + ended["POST 502"]


def all_tagged(site: Site, tag: str) -> list[dict[str, str]]:
    found, after = list[dict[str, str]](), ""
    while after is not None:
        page = site.client.get("/v1/jobs", params={"tag": tag, "after": after, "limit": 200}, headers=ALICE.header).json()
        found += page["data"]
        after = page.get("next_after")
    return found
