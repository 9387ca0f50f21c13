"""The ports that a start opens: one port on loopback, none beyond loopback without keys, and a separate port for metrics."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

import penstock
from penstock import Client
from penstock.errors import ConfigError, NotFound, Unauthorized, WrongRole
from penstock.loadtest.stack import free_port
from penstock.settings.keys import access_rule
from tests.acceptance.test_cli import COMMAND, SQUARE, Up, clean_environment, listening, started, stopped
from tests.security.keyed import ALICE, BOB, BOSS, KEYS, READER, keyed_gateway

DIRECT = [sys.executable, "-m", "penstock.gateway"]


@pytest.mark.parametrize(
    ("command", "variables"),
    [
        ([*COMMAND, "up", str(SQUARE), "--host", "0.0.0.0"], {}),
        ([*COMMAND, "up", str(SQUARE), "--host", "::"], {}),
        ([*COMMAND, "gateway", "--host", "192.0.2.1", "--redis-url", "{store}"], {}),
        (DIRECT, {"PENSTOCK_GATEWAY__HOST": "0.0.0.0", "PENSTOCK_REDIS_URL": "{store}"}),
        (DIRECT, {"PENSTOCK_GATEWAY__HOST": "0.0.0.0", "PENSTOCK_GATEWAY__PROCESSES": "2"}),
    ],
    ids=["up", "up-ipv6", "gateway", "process", "processes"],
)
def test_beyond_loopback_nothing_starts_without_keys_and_the_message_says_what_to_set(
    command: list[str], variables: dict[str, str], tmp_path: Path
) -> None:
    # This store never answers: a start that used the store before the check of keys would hang.
    with closing(socket.create_server(("127.0.0.1", 0))) as store:
        store.settimeout(0.0)
        url = f"redis://127.0.0.1:{store.getsockname()[1]}"
        argv = [word.replace("{store}", url) for word in command]
        env = {**clean_environment(), **{name: value.replace("{store}", url) for name, value in variables.items()}}
        done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        with pytest.raises(BlockingIOError):
            store.accept()
    assert done.returncode != 0
    printed = done.stdout + done.stderr
    assert "penstock keys new" in printed
    assert "[[keys]]" in printed
    assert "Traceback" not in printed
    assert not (tmp_path / ".penstock" / "valkey").exists(), "no store was started for nothing"


def test_the_rule_is_told_in_words() -> None:
    assert access_rule("127.0.0.1", ()) == "open to every program on this machine, loopback only"
    assert access_rule("localhost", ()).startswith("open")
    with pytest.raises(ConfigError):
        access_rule("localhost.example", ())


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A `penstock up` with default settings, except that it has keys and listens on every address."""
    folder = tmp_path_factory.mktemp("open")
    keys = "".join(key.toml for key in KEYS)
    (folder / "penstock.toml").write_text(f'{keys}\n[models.square]\nsource = "{SQUARE}"\n')
    running = started(folder, "--config", "penstock.toml", "--host", "0.0.0.0")
    yield running
    assert stopped(running) == 0, (folder / "up.log").read_text()


def test_with_keys_it_serves_the_network_on_its_one_port(up: Up) -> None:
    assert listening(up) == {("0.0.0.0", int(up.ready["url"].rpartition(":")[2]))}
    assert "API keys required (8 keys, 5 owners)" in (up.folder / "up.log").read_text()


def test_the_clients_and_the_command_send_their_key(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    url = up.ready["url"]
    monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)
    with Client(url, f"alice.{ALICE.secret}") as alice, Client(url, f"bob.{BOB.secret}") as bob, Client(url) as nobody:
        job = alice.submit("square", {"x": 4})
        assert job.result(timeout_s=30) == {"y": 16}
        with pytest.raises(NotFound):
            bob.job(job.id)
        with pytest.raises(Unauthorized):
            nobody.models()
        with pytest.raises(WrongRole):
            alice.workers()
    monkeypatch.setenv("PENSTOCK_API_KEY", f"reader.{READER.secret}")
    with Client(url) as reader:
        assert reader.job(job.id).view.status == "succeeded"


def test_the_command_line_passes_its_key_on(up: Up) -> None:
    assert up.penstock("call", "square", '{"x": 5}', "--api-key", f"alice.{ALICE.secret}").stdout == '{"y": 25}\n'
    refused = up.penstock("call", "square", '{"x": 5}')
    assert refused.returncode == 5
    assert "PENSTOCK_API_KEY" in refused.stderr


def test_no_scrape_and_no_open_host_rule_beyond_loopback(up: Up) -> None:
    """A30 and A33 on a public address.

    A30: metrics are served on the private port only. A33: the Host header is not checked here, because a page that rebinds its
    DNS name has no key.
    """
    for key in (ALICE, BOSS):
        assert httpx2.get(f"{up.ready['url']}/metrics", headers=key.header).status_code == 404
    assert httpx2.get(f"{up.ready['url']}/v1/models", headers={"host": "gateway.example", **ALICE.header}).status_code == 200
    assert httpx2.get(f"{up.ready['url']}/v1/models", headers={"host": "gateway.example"}).status_code == 401


def test_the_private_port_serves_the_scrape_and_nothing_else(redis_url: str, tmp_path: Path) -> None:
    port = free_port()
    with keyed_gateway(redis_url, tmp_path, metrics_port=port) as client:
        private = f"http://127.0.0.1:{port}"
        assert client.get("/v1/models", headers=ALICE.header).status_code == 200
        scrape = httpx2.get(f"{private}/metrics")
        assert scrape.status_code == 200
        assert "penstock_http_requests_total" in scrape.text
        assert not any(word in scrape.text for word in (ALICE.secret, "alice", "team-a", "python_info"))
        # Only the private port shows the version of penstock.
        assert f'penstock_build_info{{version="{penstock.__version__}"}}' in scrape.text
        assert client.get("/metrics", headers=BOSS.header).status_code == 404
        assert httpx2.get(f"{private}/v1/models").status_code == 404
        assert httpx2.post(f"{private}/metrics").status_code == 405
        assert httpx2.get(f"{private}/metrics", headers={"host": "rebound.example"}).status_code == 421
