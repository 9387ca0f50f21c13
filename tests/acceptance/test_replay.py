"""A new job with the input of a failed one, through a real gateway, with a fake worker that the test controls."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.contract import ReleaseReason
from penstock.broker.records import GiveBack, NewJob
from penstock.cli.jobs.jobs import app as inbox_command
from penstock.job import Call, Payload, new_job_id
from penstock.model_spec import ModelInfo, VersionInfo
from tests.acceptance.gateway_process import SQUARE_SCHEMA, Hand, gateway_process
from tests.acceptance.warm_command import run_command
from tests.eventually import eventually

MODELS = {"square": {"source": "square.py:Square", "max_queue_depth": 20}}
LARGE = b"\x89PNG" + bytes(range(256)) * 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def client(redis_url: str, folder: Path) -> Iterator[httpx2.Client]:
    with gateway_process(redis_url, folder, models=MODELS) as client:
        yield client


@pytest.fixture
def hand(redis_url: str, client: httpx2.Client) -> Hand:
    hand = Hand(redis_url)
    hand.announce()
    while jobs := hand.claim().jobs:
        for job in jobs:
            hand.finish(job)
    eventually(lambda: client.get("/readyz").status_code == 200)
    return hand


def failed(
    client: httpx2.Client, hand: Hand, *, code: str = "handler_error", message: str = "ValueError: no", **options: Any
) -> str:
    answer = client.post("/v1/models/square/jobs", **(options or {"json": {"x": 4}}))
    assert answer.status_code == 202, answer.text
    hand.fail(hand.take(), code, message)
    job: str = answer.json()["id"]
    return job


def test_a_failed_job_is_run_again_as_a_new_one_and_the_two_name_each_other(client: httpx2.Client, hand: Hand) -> None:
    old = failed(client, hand, json={"x": 7}, params={"priority": "bulk"})
    answer = client.post(client.get(f"/v1/jobs/{old}").json()["links"]["replay"])
    new = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{new['id']}")
    assert (new["status"], new["priority"], new["version"], new["replay_of"]) == ("queued", "bulk", "1", old)
    assert int(answer.headers["retry-after"]) >= 1
    origin = client.get(new["links"]["replay_of"]).json()
    assert (origin["status"], origin["replayed_as"], origin["links"]["replayed_as"]) == (
        "failed", new["id"], new["links"]["self"],
    )  # fmt: skip
    claimed = hand.take()
    assert (str(claimed.id), claimed.input.data) == (new["id"], b'{"x":7}')
    hand.finish(claimed)
    assert client.get(new["links"]["result"]).json() == {"y": 16}
    assert "replay" not in client.get(new["links"]["self"]).json()["links"]


def test_the_same_key_finds_the_first_replay_and_without_one_each_call_makes_another(client: httpx2.Client, hand: Hand) -> None:
    old, other = failed(client, hand), failed(client, hand)
    headers = {"idempotency-key": "once"}
    first, again = (client.post(f"/v1/jobs/{old}/replay", headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code, first.json()["id"]) == (202, 202, again.json()["id"])
    assert client.post(f"/v1/jobs/{other}/replay", headers=headers).json()["code"] == "idempotency_key_reused"
    assert client.post(f"/v1/jobs/{old}/replay").json()["id"] != first.json()["id"]


def test_a_replay_owns_its_input_file_and_keeps_it_when_its_origin_is_collected(
    client: httpx2.Client, hand: Hand, folder: Path
) -> None:
    old, blobs = new_job_id("square"), LocalBlobs(folder / "blobs")
    blobs.put(f"{old.serial}.in", LARGE)
    hand.store.submit([NewJob(old, "1", Payload("image/png", blob=f"{old.serial}.in"), result_ttl_s=0.0)])
    hand.fail(hand.take(), "handler_error", "no")
    replayed = client.post(f"/v1/jobs/{old}/replay").json()["id"]
    for name in hand.store.sweep("square").blobs:
        blobs.delete_all([name])
    gone = client.get(f"/v1/jobs/{old}")
    assert gone.status_code == 410
    assert "sync_result_ttl_s" in gone.json()["hint"], "Regression: the hint named only the setting of submitted jobs"
    claimed = hand.take()
    assert (str(claimed.id), claimed.input.blob.partition(".")[0]) == (replayed, claimed.id.serial)
    assert blobs.get(claimed.input.blob) == LARGE


@pytest.mark.parametrize("end", ["dead", "expired"])
def test_a_job_that_was_given_up_or_came_too_late_is_replayed_too(client: httpx2.Client, hand: Hand, end: str) -> None:
    old = new_job_id("square")
    deadline_s = 60.0 if end == "dead" else 0.0
    hand.store.submit([NewJob(old, "1", Payload("application/json", b'{"x":4}'), deadline_s=deadline_s, max_crashes=1)])
    for job in hand.claim().jobs:
        hand.store.release([GiveBack(job.id, job.token)], worker=hand.name, reason=ReleaseReason.CRASHED)
    assert client.get(f"/v1/jobs/{old}").json()["error"]["code"] == {"dead": "poison"}.get(end, end)
    assert client.post(f"/v1/jobs/{old}/replay").status_code == 202


def test_what_cannot_be_replayed_is_a_conflict_that_says_why(client: httpx2.Client, hand: Hand) -> None:
    done = client.post("/v1/models/square/jobs", json={"x": 4}).json()["id"]
    hand.finish(hand.take())
    live = client.post("/v1/models/square/jobs", json={"x": 4}).json()["id"]
    cancelled = client.post("/v1/models/square/jobs", json={"x": 4}).json()["id"]
    client.delete(f"/v1/jobs/{cancelled}")
    answers = {job: client.post(f"/v1/jobs/{job}/replay") for job in (done, live, cancelled)}
    assert {answer.status_code for answer in answers.values()} == {409}
    assert "succeeded, and its input was deleted" in answers[done].json()["detail"]
    assert "has not ended yet: it is queued" in answers[live].json()["detail"]
    assert "no longer stored" in answers[cancelled].json()["detail"]
    assert all(answer.json()["hint"] for answer in answers.values())


def test_an_input_whose_file_is_gone_is_a_conflict(client: httpx2.Client, hand: Hand, folder: Path) -> None:
    old = failed(client, hand, content=LARGE, headers={"content-type": "image/png"})
    blobs = LocalBlobs(folder / "blobs")
    [name] = [name for name, _ in blobs.names() if name.startswith(old.partition("-")[0])]
    blobs.delete_all([name])
    [file] = blobs.readable([name])
    assert file is not None, "its segment is kept to be filled again"
    file.path.unlink()
    assert client.post(f"/v1/jobs/{old}/replay").json()["code"] == "conflict"


def test_another_version_is_taken_only_when_it_is_named_and_must_take_the_input(client: httpx2.Client, hand: Hand) -> None:
    strict = VersionInfo(input_schema={**SQUARE_SCHEMA, "required": ["x", "y"]}, accepts=("application/json",))
    plain = VersionInfo(input_schema=SQUARE_SCHEMA, accepts=("application/json", "image/*"))
    old = failed(client, hand)
    hand.store.announce_model(ModelInfo("square", "1", versions={"1": plain, "2": strict, "3": plain}))
    eventually(lambda: set(client.get("/v1/models/square").json()["versions"]) == {"1", "2", "3"})
    told = client.post(f"/v1/jobs/{old}/replay", params={"version": "3"}).json()
    assert (told["version"], told["replay_of"]) == ("3", old)
    assert client.post(f"/v1/jobs/{old}/replay", params={"version": "2"}).json()["code"] == "invalid_input"
    assert client.post(f"/v1/jobs/{old}/replay", params={"version": "9"}).status_code == 404
    assert client.post(f"/v1/jobs/{old}/replay", params={"versoin": "3"}).status_code == 400


def test_a_replay_asks_the_same_of_the_model(client: httpx2.Client, hand: Hand) -> None:
    old = new_job_id("square")
    hand.store.submit([NewJob(old, "1", Payload("application/json", b'{"x":4}'), deadline_s=0.0, call=Call.EXPLAIN)])
    hand.store.sweep("square")
    assert client.post(f"/v1/jobs/{old}/replay").status_code == 202
    assert hand.take().call is Call.EXPLAIN


def test_a_job_of_a_version_that_is_gone_asks_for_another(client: httpx2.Client, hand: Hand) -> None:
    old = new_job_id("square")
    hand.store.submit([NewJob(old, "old", Payload("application/json", b'{"x":4}'), deadline_s=0.0)])
    hand.store.sweep("square")
    refusal = client.post(f"/v1/jobs/{old}/replay").json()
    assert refusal["code"] == "conflict"
    assert "version 'old', which no longer exists" in refusal["detail"]
    assert "?version=" in refusal["hint"]
    assert client.post(f"/v1/jobs/{old}/replay", params={"version": "1"}).status_code == 202


def penstock(client: httpx2.Client, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(["jobs", *words, "--url", str(client.base_url)], folder=Path.cwd(), env=os.environ)


def test_the_command_replays_one_job_or_all_that_failed_and_were_not_replayed(client: httpx2.Client, hand: Hand) -> None:
    jobs = [failed(client, hand) for _ in range(3)]
    answer = client.post("/v1/models/square/jobs", json={"x": 4})
    hand.fail(hand.take(), "oom", "too big")
    one = penstock(client, "replay", jobs[0])
    assert (one.returncode, client.get(f"/v1/jobs/{one.stdout.strip()}").json()["replay_of"]) == (0, jobs[0])
    rest = penstock(client, "replay", "--failed", "--model", "square", "--code", "handler_error")
    new = rest.stdout.split()
    assert rest.returncode == 0
    assert set(jobs[1:]) <= {client.get(f"/v1/jobs/{job}").json()["replay_of"] for job in new}
    assert "replayed_as" not in client.get(f"/v1/jobs/{answer.json()['id']}").json()
    assert penstock(client, "replay", "--failed", "--model", "square", "--code", "handler_error").stdout == ""
    assert penstock(client, "replay", "--failed").returncode == 2


def test_the_command_shows_exports_and_dismisses_the_failed_inbox(client: httpx2.Client, hand: Hand) -> None:
    def exported(*words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in penstock(client, "list", "--failed", "--json", *words).stdout.splitlines()]

    assert penstock(client, "dismiss", "--model", "square", "--yes").returncode == 0
    assert "no failed jobs" in penstock(client, "list", "--failed").stderr
    first, second, third = (failed(client, hand) for _ in range(3))
    own = failed(client, hand, code="invalid_input", message="x: 'four' is not a number")
    assert [job["id"] for job in exported()] == [own, third, second, first]
    assert [job["id"] for job in exported("--fault", "caller")] == [own]
    shown = penstock(client, "list", "--failed", "--model", "square").stdout
    group = exported("--fault", "model")[0]["group"]
    assert re.search(rf"{group} +square +3 +model +handler_error +{re.escape(third)} +ValueError: no\n", shown)
    assert penstock(client, "dismiss", first).stdout == "1 job dismissed\n"
    assert {job["id"] for job in exported("--group", group)} == {second, third}
    assert json.loads(penstock(client, "dismiss", "--model", "square", "--group", group, "--json").stdout) == {"dismissed": 2}
    asked = penstock(client, "dismiss", "--all")
    assert (asked.returncode, "every failed job of every model" in asked.stderr) == (1, True)
    assert [job["id"] for job in exported()] == [own]
    assert penstock(client, "dismiss", "--all", "--yes").stdout == "1 job dismissed\n"
    assert exported() == []
    assert client.get(f"/v1/jobs/{own}").json()["status"] == "failed"


@pytest.mark.parametrize("words", [(), ("JOB", "--all"), ("--group", "a"), ("--model", "square", "--all")])
def test_what_to_dismiss_is_named_in_one_way(words: tuple[str, ...]) -> None:
    wrong = CliRunner().invoke(inbox_command, ["dismiss", *words])
    assert wrong.exit_code == 2
    assert "name one JOB or several" in wrong.output


def test_a_replay_waits_for_room_in_the_queue_like_any_job(client: httpx2.Client, hand: Hand) -> None:
    old = failed(client, hand)
    for _ in range(20):
        client.post("/v1/models/square/jobs", json={"x": 4})
    assert client.post(f"/v1/jobs/{old}/replay").status_code == 429
    assert "replayed_as" not in client.get(f"/v1/jobs/{old}").json()
