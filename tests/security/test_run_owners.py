"""Owners of files, batches and runs: for a caller, those of another owner do not exist, on any route."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.gateway_process import GatewayClient
from tests.security.keyed import (
    ALICE,
    BOB,
    BOSS,
    OPERATIONS,
    OTHER_IDS,
    READER,
    SENDER,
    TestKey,
    filled,
    keyed_gateway,
    make,
    send,
)

CAROL, DAVE, ERIN = make("carol", "submit"), make("dave", "submit"), make("erin", "submit", "read")
LINE = b'{"custom_id": "a", "method": "POST", "url": "/v1/models/square/jobs", "body": {"x": 4}}\n'
OWNED = [(method, path) for method, path in OPERATIONS if any(f"{{{name}}}" in path for name in OTHER_IDS)]


def made(gateway: httpx2.Client, key: TestKey) -> dict[str, str]:
    """Creates a file, and a batch and a run over that file; returns their ids."""
    stored = gateway.post("/v1/files", files={"file": ("in.jsonl", LINE)}, data={"purpose": "batch"}, headers=key.header)
    assert stored.status_code == 200, stored.text
    file_id = stored.json()["id"]
    asked = {"input_file_id": file_id, "endpoint": "/v1/models/square/jobs", "completion_window": "1h"}
    batch = gateway.post("/v1/batches", json=asked, headers=key.header)
    run = gateway.post("/v1/runs", json={"model": "square", "input": file_id}, headers=key.header)
    assert (batch.status_code, run.status_code) == (200, 202), batch.text + run.text
    return {"file_id": file_id, "batch_id": batch.json()["id"], "run_id": run.json()["id"]}


@pytest.fixture(scope="module")
def theirs(gateway: GatewayClient) -> dict[str, str]:
    return made(gateway, ALICE)


@pytest.mark.parametrize(("method", "path"), OWNED)
def test_anothers_is_answered_byte_for_byte_as_one_that_never_was(
    gateway: GatewayClient, theirs: dict[str, str], method: str, path: str
) -> None:
    answer, absent = send(gateway, method, filled(path, **theirs), key=BOB), send(gateway, method, filled(path), key=BOB)
    assert answer.status_code == absent.status_code == 404
    text = answer.text
    for name, id in theirs.items():
        text = text.replace(id, OTHER_IDS[name])
    assert text == absent.text


def test_anothers_file_is_no_input(gateway: GatewayClient, theirs: dict[str, str]) -> None:
    file_id = theirs["file_id"]
    run = gateway.post("/v1/runs", json={"model": "square", "input": file_id}, headers=BOB.header)
    asked = {"input_file_id": file_id, "endpoint": "/v1/models/square/jobs", "completion_window": "1h"}
    batch = gateway.post("/v1/batches", json=asked, headers=BOB.header)
    assert (run.status_code, batch.status_code) == (404, 404)


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/runs"])
def test_a_list_shows_ones_own_and_to_the_manager_all(gateway: GatewayClient, theirs: dict[str, str], path: str) -> None:
    own = made(gateway, BOB)

    def shown(key: TestKey) -> set[str]:
        return {item["id"] for item in gateway.get(path, params={"limit": "100"}, headers=key.header).json()["data"]}

    assert shown(BOB) & {*own.values(), *theirs.values()} <= set(own.values())
    assert shown(BOB) & set(own.values())
    assert shown(READER) & set(theirs.values())
    assert not shown(READER) & set(own.values())
    assert {*own.values(), *theirs.values()} & shown(BOSS)
    after = {"/v1/files": own["file_id"], "/v1/batches": own["batch_id"], "/v1/runs": own["run_id"]}[path]
    behind = gateway.get(path, params={"after": after}, headers=READER.header)
    # The id of a file is a place in the list, whether there is such a file or not: files are deleted while their list is read.
    assert behind.status_code == (200 if path == "/v1/files" else 404)
    assert not {item["id"] for item in behind.json().get("data", ())} & set(own.values())


def test_each_owner_has_a_quota_of_runs_and_of_files(redis_url: str, tmp_path: Path) -> None:
    # Regression: one owner could make any number of runs and fill the disk with files.
    env = {"PENSTOCK_RUNS__MAX_OWNER_RUNS": "2", "PENSTOCK_RUNS__MAX_OWNER_BYTES": "4096"}
    with keyed_gateway(redis_url, tmp_path, keys=(CAROL, DAVE), env=env) as gateway:
        ids = made(gateway, CAROL)
        asked = {"model": "square", "input": ids["file_id"]}
        third = gateway.post("/v1/runs", json=asked, headers=CAROL.header)
        assert (third.status_code, third.json()["code"]) == (429, "quota_spent")
        assert "max_owner_runs" in third.json()["hint"]
        assert gateway.post("/v1/batches/" + ids["batch_id"] + "/cancel", headers=CAROL.header).status_code == 200
        assert gateway.post("/v1/runs", json=asked, headers=CAROL.header).status_code == 202
        stored = [
            gateway.post("/v1/files", files={"file": b"x" * 1_000}, data={"purpose": "batch"}, headers=CAROL.header)
            for _ in range(4)
        ]
        assert [answer.status_code for answer in stored] == [200] * 3 + [429]
        assert made(gateway, DAVE)


def test_runs_that_are_created_at_once_do_not_pass_the_quota(redis_url: str, tmp_path: Path) -> None:
    """Regression: the open runs of an owner were read, and then the run was created."""
    with keyed_gateway(redis_url, tmp_path, keys=(ERIN,), env={"PENSTOCK_RUNS__MAX_OWNER_RUNS": "4"}) as gateway:
        asked = {"model": "square", "input": made(gateway, ERIN)["file_id"]}
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda _: gateway.post("/v1/runs", json=asked, headers=ERIN.header), range(16)))
        # Two stand since `made`.
        assert sorted(answer.status_code for answer in answers) == [202] * 2 + [429] * 14
        assert len(gateway.get("/v1/runs", params={"limit": 100}, headers=ERIN.header).json()["data"]) == 4
        homes = list((tmp_path / "files").glob("[0-9a-z][0-9a-z]/*"))
        assert len(homes) == 1 + 2 * 4, "the input, and the files of each run; a refused run leaves none"


def test_one_idempotency_key_of_two_owners_makes_two_batches(gateway: GatewayClient) -> None:
    ids: list[tuple[str, str]] = []
    for key in (ALICE, SENDER, BOB):
        file_id = made(gateway, key)["file_id"] if key is BOB or not ids else ids[0][1]
        asked = {"input_file_id": file_id, "endpoint": "/v1/models/square/jobs", "completion_window": "2h"}
        answer = gateway.post("/v1/batches", json=asked, headers={**key.header, "idempotency-key": "same"})
        ids.append((answer.json()["id"], file_id))
    assert ids[0][0] == ids[1][0] != ids[2][0]


def test_a_run_page_of_anothers_is_not_there(gateway: GatewayClient, theirs: dict[str, str]) -> None:
    for tail in ("", "/output", "/errors"):
        answer = gateway.get(f"/ui/runs/{theirs['run_id']}{tail}", headers=BOB.header)
        assert answer.status_code == 404
    assert theirs["run_id"] not in gateway.get("/ui/runs", headers=BOB.header).text


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
@pytest.mark.parametrize("path", ["/v1/batches", "/v1/runs", "/v1/embeddings"])
def test_no_body_is_inflated(gateway: GatewayClient, path: str, coding: str) -> None:
    answer = gateway.post(path, content=b"\x1f\x8b" + b"x" * 99, headers={**ALICE.header, "content-encoding": coding})
    assert answer.status_code == 415


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":1,"a":2}', b"\xff", b"", b"[" * 65 + b"]" * 65])
@pytest.mark.parametrize("path", ["/v1/batches", "/v1/runs", "/v1/embeddings"])
def test_a_json_bomb_is_a_400(gateway: GatewayClient, path: str, body: bytes) -> None:
    headers = {**ALICE.header, "content-type": "application/json"}
    assert gateway.post(path, content=body, headers=headers).status_code == 400
