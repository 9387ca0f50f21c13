"""Keys and rates over two real gateways of one store: made, listed and revoked at one of them, known at both."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from penstock.embedded.server import EmbeddedServer
from penstock.extensions.oip.grpc.messages import message_class
from penstock.gateway.auth.key_beat import KNOWN_WITHIN_S
from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import GatewayClient, Hand
from tests.acceptance.grpc_call import call
from tests.acceptance.warm_command import run_command
from tests.eventually import eventually
from tests.security.keyed import BOSS, keyed_gateway, make

CI = make("declared", "submit", "read")
RATE, BURST = 20.0, 10


class Pair:
    """Two gateways, and who asks them."""

    def __init__(self, near: GatewayClient, far: GatewayClient, *, grpc_port: int, log: Path) -> None:
        self.near, self.far, self.grpc_port, self.log = near, far, grpc_port, log
        self.both = (near, far)

    def make(self, name: str, **settings: Any) -> dict[str, str]:
        """The header of a new key."""
        given = {"id": name, "roles": ["submit", "read"], **settings}
        made = self.near.post("/v1/keys", json=given, headers=BOSS.header)
        assert made.status_code == 201, made.text
        return {"authorization": f"Bearer {made.json()['key']}"}

    def await_known(self, header: dict[str, str], status: int) -> None:
        # A second more, for a machine that is busy with other tests.
        eventually(lambda: self._far_status(header) == status, timeout_s=KNOWN_WITHIN_S + 1.0)

    def _far_status(self, header: dict[str, str]) -> int | None:
        """None: the key was revoked while the request was under way, and the gateway hung up on it, as it says it does."""
        try:
            return self.far.get("/v1/models", headers=header).status_code
        except httpx2.RemoteProtocolError:
            return None


@pytest.fixture(scope="module")
def pair(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder, port = tmp_path_factory.mktemp("pair"), free_port()
    with (
        (folder / "near.log").open("wb") as log,
        keyed_gateway(redis_url, folder / "near", keys=(BOSS, CI), log=log) as near,
        keyed_gateway(redis_url, folder / "far", keys=(BOSS, CI), grpc_port=port) as far,
    ):
        yield Pair(near, far, grpc_port=port, log=folder / "near.log")


def test_a_key_that_is_made_at_one_gateway_opens_the_other_until_it_is_revoked(pair: Pair) -> None:
    header = pair.make("ci", owner="team-a", max_open_jobs=5)
    assert pair.near.get("/v1/models", headers=header).status_code == 200
    pair.await_known(header, 200)
    refused = pair.far.get("/v1/workers", headers=header)
    assert (refused.status_code, refused.json()["code"]) == (403, "wrong_role")
    assert pair.near.delete("/v1/keys/ci", headers=BOSS.header).json()["revoked"]
    assert pair.near.get("/v1/models", headers=header).status_code == 401
    pair.await_known(header, 401)
    again = pair.near.delete("/v1/keys/ci", headers=BOSS.header)
    assert (again.status_code, again.json()["detail"]) == (404, "there is no key 'ci'")


def test_the_secret_is_shown_once_and_nowhere_else(pair: Pair, redis_url: str) -> None:
    made = pair.near.post("/v1/keys", json={"id": "once", "roles": ["read"], "rate_per_s": 5}, headers=BOSS.header)
    assert made.headers["cache-control"] == "no-store"
    shown = made.json()
    secret = shown.pop("key").partition(".")[2]
    listed = pair.far.get("/v1/keys", headers=BOSS.header)
    [found] = [one for one in listed.json()["data"] if one["id"] == "once"]
    assert found == {name: value for name, value in shown.items() if name != "within_s"}
    assert (found["owner"], found["source"], found["made_by"], found["rate_per_s"]) == ("once", "store", "boss", 5.0)
    assert secret not in listed.text
    assert secret not in pair.log.read_text()
    audit = [line for line in pair.log.read_text().splitlines() if "key_made" in line and "once" in line]
    assert len(audit) == 1
    assert "boss" in audit[0]


def test_a_revoked_key_ends_what_waits_and_streams_for_it_at_every_gateway(pair: Pair, redis_url: str) -> None:
    header = pair.make("waits")
    pair.await_known(header, 200)
    Hand(redis_url).announce()
    eventually(lambda: pair.far.get("/v1/models/square", headers=CI.header).json()["ready"])
    job = pair.far.post("/v1/models/square/jobs", json={"x": 4}, headers=header).json()["id"]
    ended: list[str] = []

    def follow(path: str, sent: dict[str, str]) -> None:
        try:
            with (
                httpx2.Client(base_url=pair.far.base_url, timeout=30.0) as client,
                client.stream("GET", path, headers=sent) as stream,
            ):
                for _ in stream.iter_lines():
                    pass
            ended.append("whole")
        except httpx2.TransportError:
            ended.append("broken off")

    paths = [f"/v1/jobs/{job}/events", f"/v1/jobs/{job}?wait=25"]
    threads = [threading.Thread(target=follow, args=(path, header)) for path in paths]
    for thread in threads:
        thread.start()
    # Another key's wait of the same moment goes on.
    other = pair.far.post("/v1/models/square/jobs", json={"x": 4}, headers=CI.header).json()["id"]
    spared = threading.Thread(target=follow, args=(f"/v1/jobs/{other}?wait=3", CI.header))
    spared.start()
    time.sleep(0.3)
    assert not ended
    pair.near.delete("/v1/keys/waits", headers=BOSS.header)
    for thread in threads:
        thread.join(KNOWN_WITHIN_S + 1.0)
    assert ended == ["broken off"] * 2
    spared.join()
    assert ended[2:] == ["whole"]


def test_a_revoked_key_ends_its_calls_over_grpc(pair: Pair, redis_url: str) -> None:
    header = pair.make("calls")
    pair.await_known(header, 200)
    Hand(redis_url).announce()
    eventually(lambda: pair.far.get("/v1/models/square", headers=CI.header).json()["ready"])
    codes: list[grpc.StatusCode] = []

    def infer(channel: grpc.Channel) -> None:
        given = {"name": "x", "datatype": "FP64", "shape": [1], "contents": {"fp64_contents": [4.0]}}
        message = message_class("ModelInferRequest")(model_name="square", inputs=[given]).SerializeToString()
        with pytest.raises(grpc.RpcError) as ended:
            call(channel, "ModelInfer", message, metadata=tuple(header.items()), timeout=20.0)
        codes.append(ended.value.code())

    with grpc.insecure_channel(f"127.0.0.1:{pair.grpc_port}") as channel:
        calling = threading.Thread(target=infer, args=(channel,))
        calling.start()
        eventually(lambda: pair.far.get("/v1/queues/square", headers=CI.header).json()["depth"])
        assert not codes
        pair.near.delete("/v1/keys/calls", headers=BOSS.header)
        calling.join(KNOWN_WITHIN_S + 1.0)
    assert codes == [grpc.StatusCode.UNAUTHENTICATED]


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"id": "declared", "roles": ["read"]}, 409, "the key 'declared' is declared in the settings of this gateway"),
        ({"id": "Ci", "roles": ["read"]}, 422, "this key cannot be made"),
        ({"id": "x", "roles": []}, 422, "this key cannot be made"),
        ({"id": "x", "roles": ["root"]}, 422, "this key cannot be made"),
        ({"id": "x", "roles": ["read"], "rate": 5}, 422, "this key cannot be made"),
        ({"id": "x", "roles": ["read"], "sha256": "0" * 64}, 422, "the gateway makes the secret itself"),
        ({"id": "x", "roles": ["read"], "webhook": "https://a.example/"}, 422, "this key cannot be made"),
        ([], 422, "an object with `id` and `roles`"),
    ],
)
def test_a_key_that_cannot_be_made_is_refused_in_words(pair: Pair, given: Any, status: int, said: str) -> None:
    refused = pair.near.post("/v1/keys", json=given, headers=BOSS.header)
    assert refused.status_code == status
    assert said in refused.json()["detail"]
    if said.startswith("this key"):
        assert refused.json()["errors"][0]["pointer"] in ("/id", "/roles", "/roles/0", "/rate", "/webhook")


def test_a_key_is_made_once(pair: Pair) -> None:
    pair.make("twice")
    refused = pair.far.post("/v1/keys", json={"id": "twice", "roles": ["manage"]}, headers=BOSS.header)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")


def test_a_key_of_the_settings_stays(pair: Pair) -> None:
    refused = pair.near.delete("/v1/keys/declared", headers=BOSS.header)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "Take it out of [[keys]]" in refused.json()["hint"]
    assert pair.near.get("/v1/models", headers=CI.header).status_code == 200


def test_only_operators_make_keys(pair: Pair) -> None:
    for method, path in [("POST", "/v1/keys"), ("GET", "/v1/keys"), ("DELETE", "/v1/keys/twice")]:
        assert pair.near.request(method, path, headers=CI.header).status_code == 403


def test_the_command_makes_lists_and_revokes(pair: Pair, tmp_path: Path) -> None:
    def penstock(*words: str) -> Any:
        own = {"PENSTOCK_URL": str(pair.near.base_url), "PENSTOCK_API_KEY": f"{BOSS.id}.{BOSS.secret}"}
        return run_command(words, folder=tmp_path, env={**os.environ, **own})

    made = penstock("keys", "new", "command", "--role", "submit,read", "--rate", "7", "--days", "2")
    assert made.returncode == 0, made.stderr
    header = {"authorization": f"Bearer {made.stdout.strip()}"}
    pair.await_known(header, 200)
    rows = [json.loads(line) for line in penstock("keys", "list", "--json").stdout.splitlines()]
    assert {(row["id"], row["source"]) for row in rows} >= {("command", "store"), ("boss", "settings")}
    assert "command" in penstock("keys", "list").stdout
    revoked = penstock("keys", "revoke", "command")
    assert "command is revoked" in revoked.stdout
    pair.await_known(header, 401)
    refused = penstock("keys", "revoke", "declared")
    assert refused.returncode != 0
    assert "declared in the settings" in refused.stderr


@pytest.mark.parametrize("weights", [(1, 1), (9, 1)])
def test_a_key_has_its_rate_over_all_gateways(pair: Pair, weights: tuple[int, int]) -> None:
    """Each gateway counted for itself, so that a key had its rate as many times."""
    name = f"rate-{weights[0]}-{weights[1]}"
    header = pair.make(name, rate_per_s=RATE, burst=BURST)
    pair.await_known(header, 200)
    passed, waits = 0, []
    began = time.monotonic()
    turns = [gateway for gateway, weight in zip(pair.both, weights, strict=True) for _ in range(weight)]
    while time.monotonic() - began < 2.0:
        for gateway in turns:
            answer = gateway.get("/v1/models", headers=header)
            passed += answer.status_code == 200
            if answer.status_code == 429:
                waits.append(int(answer.headers["retry-after"]))
    took_s = time.monotonic() - began
    assert passed <= RATE * (took_s + 1.0) + BURST * 2
    assert passed >= RATE * (took_s - 1.0)
    assert waits
    assert max(waits) <= 2


def test_a_gateway_that_starts_knows_the_keys_at_once_and_without_the_store_it_opens_nothing(
    tmp_path: Path, has_server: None
) -> None:
    with EmbeddedServer(tmp_path / "store", fsync="everysec") as server:
        with keyed_gateway(server.url, tmp_path / "first", keys=(BOSS,)) as first:
            made = first.post("/v1/keys", json={"id": "kept", "roles": ["read"]}, headers=BOSS.header).json()["key"]
        header = {"authorization": f"Bearer {made}"}
        with keyed_gateway(server.url, tmp_path / "second", keys=(BOSS,)) as second:
            assert second.get("/v1/models", headers=header).status_code == 200
            server.stop()
            # What is known counts for a while: the list of models needs no store.
            assert second.get("/v1/models", headers=header).status_code == 200
            assert second.get("/v1/models", headers={"authorization": "Bearer kept.guess"}).status_code == 401
            refused = second.post("/v1/keys", json={"id": "x", "roles": ["read"]}, headers=BOSS.header)
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
