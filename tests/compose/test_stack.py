"""The containers as a user runs them. All tests share one stack and depend on their order; `make compose-test` runs them."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import Any

import pytest

from penstock import Client
from penstock.errors import PenstockError
from tests.compose.conftest import SAMPLES, answers, digits, mixed
from tests.compose.images import LIMITS_MB, added_mb
from tests.compose.load import load, wrong
from tests.compose.stack import COMPOSE, FILES, Stack, docker, run
from tests.eventually import eventually

pytestmark = pytest.mark.compose

# The services that `docker compose up` leaves running. tests/unit/test_compose.py compares them with compose.yaml.
LASTING = ("gateway", "runner", "valkey", "worker")
STOP_LIMIT_S = 40.0


def test_the_onnx_image_is_small_and_without_torch(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    added = added_mb(image)
    with capsys.disabled():
        print(f"\n{image} adds {added:.0f} MB to its base, limit {LIMITS_MB['onnx']} MB")
    assert 0 < added < LIMITS_MB["onnx"]
    with pytest.raises(AssertionError, match="No module named 'torch'"):
        docker("run", "--rm", "--network", "none", image, "python", "-c", "import torch")


def test_compose_takes_both_files(engine: None) -> None:
    plain, gpu = (["-f", str(file)] for file in FILES)
    run([*COMPOSE, *plain, "config", "-q"])
    run([*COMPOSE, *plain, *gpu, "--profile", "*", "config", "-q"])


def test_all_services_come_up_healthy(stack: Stack) -> None:
    health = {service: found["State"]["Health"]["Status"] for service, found in stack.by_service().items()}
    assert health == dict.fromkeys(LASTING, "healthy")


def test_from_outside_only_the_gateways_port_is_open(stack: Stack, closed_before: list[tuple[str, int]]) -> None:
    published = {
        (service, inner, bound["HostIp"], int(bound["HostPort"]))
        for service, found in stack.by_service().items()
        for inner, bindings in found["NetworkSettings"]["Ports"].items()
        for bound in bindings or ()
    }
    assert published == {("gateway", "8080/tcp", "127.0.0.1", stack.port)}
    assert answers("127.0.0.1", stack.port)
    assert closed_before, "some port of the parts must have been closed before"
    assert [place for place in closed_before if answers(*place)] == []
    outside = {host for host, _ in closed_before} - {"127.0.0.1"}
    assert [host for host in outside if answers(host, stack.port)] == []


def test_the_store_and_the_workers_have_no_way_out(stack: Stack) -> None:
    networks = {service: sorted(found["NetworkSettings"]["Networks"]) for service, found in stack.by_service().items()}
    inside, edge = f"{stack.project}_inside", f"{stack.project}_edge"
    assert networks == {name: [edge, inside] if name == "gateway" else [inside] for name in LASTING}
    assert docker("network", "inspect", "-f", "{{.Internal}}", inside).strip() == "true"


def test_real_images_through_the_published_port_get_their_digits(stack: Stack, client: Client) -> None:
    with load(stack.url, stack.key, digits(len(SAMPLES)), per_s=100) as running:
        assert wrong(running.results(at_least=len(SAMPLES))) == []
    # An input of this size is not kept in the store: gateway and worker exchange it through the shared folder of blobs.
    padded = SAMPLES[0].read_bytes() + bytes(200_000)
    output = client.submit("digits", padded, content_type="image/png").result(timeout_s=30)
    assert output["label"] == int(SAMPLES[0].stem.partition("_")[2])


def test_nobody_is_served_without_a_key_and_the_key_of_the_setup_works(stack: Stack) -> None:
    with Client(stack.url, "wrong.key") as stranger, pytest.raises(PenstockError, match="key"):
        stranger.models()
    with Client(stack.url, (stack.secrets / "api_key").read_text()) as caller:
        assert {model["name"] for model in caller.models()} == {"digits", "peek", "slow"}


@pytest.mark.parametrize("service", LASTING)
def test_a_container_has_no_root_no_capabilities_and_nothing_to_write_to(stack: Stack, service: str) -> None:
    [found] = stack.containers(service)
    identity = found["Id"]
    assert stack.inside(identity, "id", "-u").strip() != "0"
    lines = stack.inside(identity, "cat", "/proc/self/status").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    for folder in ("/", "/etc", "/usr/local", "/models" if service != "valkey" else "/etc/penstock"):
        with pytest.raises(AssertionError, match=r"Read-only file system|Permission denied"):
            stack.inside(identity, "sh", "-c", f"touch {folder}/x")
    assert found["HostConfig"]["ReadonlyRootfs"]
    assert found["HostConfig"]["Memory"] > 0
    assert found["HostConfig"]["NanoCpus"] > 0


def test_what_a_worker_may_do_ends_at_its_own_user(stack: Stack) -> None:
    [found] = stack.containers("worker")
    program = (
        "import os, redis; url = open(os.environ['PENSTOCK_REDIS_URL_FILE']).read(); client = redis.Redis.from_url(url)\n"
        "try: client.flushall()\nexcept redis.exceptions.NoPermissionError: print('refused')"
    )
    assert stack.inside(found["Id"], "python", "-c", program).strip() == "refused"
    assert sorted(stack.inside(found["Id"], "ls", "/run/secrets").split()) == ["worker_url"]


def test_model_code_cannot_read_the_secrets_of_its_worker(stack: Stack, client: Client) -> None:
    assert client.predict("peek", "/models/penstock.toml").startswith("#"), "it reads other files"
    assert client.predict("peek", "/run/secrets/worker_url") == "refused"
    assert [client.predict("peek", f"/proc/{pid}/environ") for pid in _supervisors(stack)] == ["refused"]


def _supervisors(stack: Stack) -> list[str]:
    """The process id of the worker in its container, where model code has pids of its own."""
    [found] = stack.containers("worker")
    program = (
        "import pathlib; read = lambda p: p.read_bytes() if p.exists() else b''\n"
        "words = {p.name: read(p / 'cmdline').split(bytes(1)) for p in pathlib.Path('/proc').iterdir() if p.name.isdigit()}\n"
        "print(*(pid for pid, line in words.items() if line[1:3] == [b'-m', b'penstock.workers']))"
    )
    return stack.inside(found["Id"], "python", "-c", program).split()


def test_workers_scale_from_1_to_3_to_1_under_load_and_no_job_fails(stack: Stack, client: Client) -> None:
    with load(stack.url, stack.key, mixed(20), per_s=25) as running:
        running.await_accepted(40)
        stack.scale(3)
        eventually(lambda: len(client.workers()) == 3, timeout_s=30)
        before = _batches(stack)
        assert len(before) == 3
        eventually(lambda: _all_claimed(stack, before), timeout_s=60)
        assert {tuple(slot.get("cores") or ()) for worker in client.workers() for slot in worker["slots"]} == {()}
        stack.scale(1)
        assert len(stack.containers("worker")) == 1
        ended = running.results(at_least=300)
    assert wrong(ended) == []


def _all_claimed(stack: Stack, before: dict[str, float]) -> bool:
    return all(count > before[worker] for worker, count in _batches(stack).items())


def _batches(stack: Stack) -> dict[str, float]:
    """The number of batches that each worker has run, by the id of its container, from the worker's own metrics."""
    program = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9101/metrics').read().decode())"
    texts = {found["Id"]: stack.inside(found["Id"], "python", "-c", program) for found in stack.containers("worker")}
    return {worker: sum(map(_value, _counts(text))) for worker, text in texts.items()}


def _counts(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("penstock_batch_size_count")]


def _value(line: str) -> float:
    return float(line.rpartition(" ")[2])


def test_500_jobs_all_finish_though_a_worker_and_the_store_are_killed_among_them(stack: Stack, client: Client) -> None:
    stack.scale(2)
    eventually(lambda: len(client.workers()) == 2, timeout_s=30)
    with load(stack.url, stack.key, mixed(100), per_s=30) as running:
        running.await_accepted(120)
        docker("kill", "--signal", "KILL", stack.containers("worker")[0]["Id"])
        running.await_accepted(250)
        store = stack.containers("valkey")[0]["Id"]
        # This kills every process but the first, which then ends too: a crash, after which the engine restarts the container.
        docker("exec", store, "sh", "-c", "kill -9 -1")
        eventually(lambda: _restarts(store) == 1, timeout_s=30)
        ended = running.results(at_least=500)
    assert wrong(ended) == []
    assert len(ended) >= 500
    assert len(stack.containers("worker")) == 1, "the killed one is not started again by anybody but its operator"
    stack.scale(1)


def _restarts(container: str) -> int:
    return int(docker("inspect", "-f", "{{.RestartCount}}", container))


def test_a_new_version_takes_over_under_load_and_no_job_is_lost(stack: Stack, next_tag: str) -> None:
    with load(stack.url, stack.key, mixed(20), per_s=15) as running:
        running.await_accepted(30)
        stack.tag = next_tag
        # docs/production/deploy.md prescribes this order: rights and functions of the new version, then its containers.
        stack.compose("run", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "setup")
        stack.up()
        ended = running.results(at_least=200)
    assert wrong(ended) == []
    images = {service: found["Config"]["Image"] for service, found in stack.by_service().items()}
    assert images["gateway"] == images["worker"] == "penstock:next-onnx"
    assert len(_libraries(stack)) == 2, "the functions of both versions are there, for containers of either"


def _libraries(stack: Stack) -> set[str]:
    program = (
        "import sys, redis; client = redis.Redis.from_url(sys.stdin.read(), protocol=2)\n"
        "print(*(row[1].decode() for row in client.function_list()))"
    )
    url = (stack.secrets / "admin_url").read_text()
    [gateway] = stack.containers("gateway")
    return set(docker("exec", "-i", gateway["Id"], "python", "-c", program, stdin=url).split())


def test_a_worker_that_is_stopped_gives_its_jobs_back_in_time_and_they_are_finished_later(stack: Stack, client: Client) -> None:
    handles = [client.submit("slow", {"seconds": 12.0, "number": number}) for number in range(6)]
    eventually(lambda: sum(handle.refresh().status == "running" for handle in handles) >= 4, timeout_s=20)
    [worker] = stack.containers("worker")
    began = time.monotonic()
    stack.compose("stop", "worker")
    assert time.monotonic() - began < STOP_LIMIT_S
    ended = json.loads(docker("inspect", worker["Id"]))[0]["State"]
    assert (ended["ExitCode"], ended["OOMKilled"]) == (0, False), "it ended by itself, not by the engine's kill"
    assert Counter(handle.refresh().status for handle in handles) == {"queued": 6}
    stack.compose("start", "worker")
    views = [handle.wait(timeout_s=120) for handle in handles]
    assert [(view.status, view.attempts) for view in views] == [("succeeded", 1)] * 6, "a stop costs no attempt"


def test_flower_asks_for_its_password_and_shows_the_worker(stack: Stack, client: Client) -> None:
    stack.up("flower")
    url = f"http://127.0.0.1:{stack.profiles['flower']}"
    assert _get(f"{url}/workers", "")[0] == 401
    assert _get(f"{url}/api/workers", "")[0] == 401
    login = (stack.secrets / "flower_auth").read_text()
    status, body = eventually(lambda: _filled(_get(f"{url}/api/workers?refresh=1", login)), timeout_s=30)
    assert status == 200
    assert set(json.loads(body)) == {worker["name"] for worker in client.workers()}


def test_prometheus_finds_every_worker_and_the_gateway(stack: Stack) -> None:
    stack.scale(2)
    stack.up("prometheus")
    url = f"http://127.0.0.1:{stack.profiles['prometheus']}/api/v1/query?query=up"
    eventually(lambda: Counter(_up(url)) == {("penstock-gateway", "1"): 1, ("penstock-worker", "1"): 2}, timeout_s=60)


def _up(url: str) -> list[tuple[str, str]]:
    rows: list[dict[str, Any]] = json.loads(_get(url, "")[1])["data"]["result"]
    return [(row["metric"]["job"], row["value"][1]) for row in rows]


def _filled(answer: tuple[int, str]) -> tuple[int, str] | None:
    return answer if answer[0] == 200 and json.loads(answer[1]) else None


def _get(url: str, login: str) -> tuple[int, str]:
    from base64 import b64encode
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}
    try:
        with build_opener(ProxyHandler({})).open(Request(url, headers=headers), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refusal:
        return refusal.code, ""
