"""compose.ha.yaml as a user runs it: stores and gateways are killed under load. All tests share one stack, in their order.

`make compose-ha-test` runs them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import pytest

from penstock import Client
from penstock.loadtest.stack import free_port
from tests.compose.conftest import make_stack, mixed
from tests.compose.load import load, wrong
from tests.compose.stack import EXTRA, FILES, ROOT, Stack, docker
from tests.eventually import eventually

pytestmark = pytest.mark.compose_ha

SERVERS = ("valkey", "valkey-2", "valkey-3")
HA_FILES = (FILES[0], ROOT / "compose" / "compose.ha.yaml", EXTRA, EXTRA.with_name("compose.ha.test.yaml"))


@pytest.fixture(scope="module")
def stack(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    profiles = {name: free_port() for name in ("flower", "prometheus", "grafana")}
    folder = tmp_path_factory.mktemp("secrets")
    yield from make_stack(Stack(f"penstock-ha-{secrets.token_hex(3)}", free_port(), folder, profiles, files=HA_FILES))


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.url, stack.key) as opened:
        yield opened


def ask(stack: Stack, service: str, *words: str) -> str:
    """The answer of one server or sentinel to its administrator."""
    password = json.loads((stack.secrets / "passwords.json").read_text())["admin"]
    port = "26379" if service.startswith("sentinel") else "6379"
    login = (
        "export REDISCLI_AUTH=$0 VALKEYCLI_AUTH=$0; exec $(command -v valkey-cli || command -v redis-cli) --user penstock-admin"
    )
    [container] = stack.containers(service)
    return stack.inside(container["Id"], "sh", "-c", f'{login} -p {port} "$@"', password, *words)


def primary(stack: Stack) -> str:
    return ask(stack, "sentinel-1", "sentinel", "get-master-addr-by-name", "penstock").split()[0]


def kill(stack: Stack, service: str) -> None:
    for container in stack.containers(service):
        docker("kill", "--signal", "KILL", container["Id"])


def replicas(stack: Stack, service: str) -> int:
    lines = dict(line.split(":", 1) for line in ask(stack, service, "info", "replication").splitlines() if ":" in line)
    return int(lines["connected_slaves"])


def test_one_store_leads_and_two_follow(stack: Stack) -> None:
    assert primary(stack) == "valkey"
    assert replicas(stack, "valkey") == 2


def test_only_the_proxy_is_reached_from_outside(stack: Stack) -> None:
    published = {service for service, found in stack.by_service().items() if any(found["NetworkSettings"]["Ports"].values())}
    assert published == {"proxy"}


def test_a_sentinel_tells_a_gateway_who_leads_and_takes_no_order_from_it(stack: Stack) -> None:
    [gateway] = stack.containers("gateway")
    program = (
        "import os, redis, urllib.parse as u\n"
        "url = u.urlsplit(open(os.environ['PENSTOCK_REDIS_URL_FILE']).read())\n"
        "login = dict(u.parse_qsl(url.query))\n"
        "login = {name.removeprefix('sentinel_'): value for name, value in login.items() if name.startswith('sentinel_')}\n"
        "sentinel = redis.Redis(host='sentinel-1', port=26379, **login)\n"
        "print(sentinel.execute_command('SENTINEL GET-MASTER-ADDR-BY-NAME', 'penstock')[0].decode())\n"
        "try: sentinel.execute_command('SENTINEL FAILOVER', 'penstock')\n"
        "except redis.exceptions.NoPermissionError: print('refused')"
    )
    assert stack.inside(gateway["Id"], "python", "-c", program).split() == ["valkey", "refused"]


def test_a_primary_and_a_gateway_are_killed_under_load_and_no_job_is_lost(stack: Stack, client: Client) -> None:
    with load(stack.url, stack.key, mixed(20), per_s=15) as running:
        running.await_accepted(40)
        kill(stack, "valkey")
        eventually(lambda: primary(stack) != "valkey", timeout_s=60)
        before = running.accepted()
        running.await_accepted(before + 60)
        kill(stack, "gateway")
        running.await_accepted(before + 160)
        ended = running.results(at_least=300)
    assert wrong(ended) == []
    assert len(ended) >= 300


def test_the_old_primary_comes_back_as_a_replica_and_the_gateway_serves_again(stack: Stack, client: Client) -> None:
    leader = primary(stack)
    stack.compose("up", "-d", "--wait", "--no-build", "--no-recreate")
    eventually(lambda: "role:slave" in ask(stack, "valkey", "info", "replication"), timeout_s=60)
    eventually(lambda: replicas(stack, leader) == 2, timeout_s=60)
    assert primary(stack) == leader
    kill(stack, "gateway-2")
    assert client.submit("slow", {"seconds": 0, "number": 7}).result(timeout_s=30) == 7
