"""What operators do to models and workers that serve, over HTTP: pause, limits, purge, drain, and the audit log of it all."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import typer
from typer.testing import CliRunner, Result

from penstock.cli.jobs import jobs
from penstock.cli.models import models, workers
from penstock.cli.ops import audit
from tests.acceptance.gateway_process import GatewayClient
from tests.eventually import eventually
from tests.security.keyed import READER, SENDER, make
from tests.stack import Stack

OPERATOR = make("boss", "manage", "submit", more="rate_per_s = 100000\nburst = 100000\nmax_open_jobs = 5000")

HANDLER = """
import penstock

@penstock.model(max_batch_size=4)
def half(x: float) -> float:
    return x / 2
"""


class OperatedStack(Stack):
    """A worker and a gateway with keys. `boss` may manage."""

    reader: GatewayClient
    log: Path

    @property
    def boss(self) -> GatewayClient:
        return self.http

    def submit(self, count: int) -> list[str]:
        return [self.submit_one(n) for n in range(count)]

    def submit_one(self, value: int) -> str:
        """Again while the gateway still knows the depth from before the last test's jobs ended, as Retry-After asks for."""
        accepted: list[httpx2.Response] = []

        def is_accepted() -> bool:
            accepted[:] = [self.boss.post("/v1/models/half/jobs", json=value)]
            return accepted[0].status_code == 202

        eventually(is_accepted)
        return str(accepted[0].json()["id"])

    def status(self, job: str) -> str:
        return str(self.boss.get(f"/v1/jobs/{job}").json()["status"])

    def failed(self, count: int) -> list[str]:
        """Jobs that expired, and lie in the failed inbox."""
        self.act("/v1/models/half/pause")
        ids = [self.boss.post("/v1/models/half/jobs", params={"deadline_s": 0.1}, json=1).json()["id"] for _ in range(count)]
        eventually(lambda: {self.status(id) for id in ids} == {"expired"})
        self.act("/v1/models/half/resume")
        return ids

    def queue(self) -> dict[str, Any]:
        found: dict[str, Any] = self.boss.get("/v1/queues/half").json()
        return found

    def act(self, path: str) -> dict[str, Any]:
        answer = self.boss.post(path)
        assert answer.status_code == 202, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def acts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.boss.get("/v1/audit").json()["data"]
        return found


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatedStack]:
    folder = tmp_path_factory.mktemp("operated")
    (folder / "half.py").write_text(HANDLER)
    keys = folder / "keys.toml"
    keys.write_text(READER.toml + SENDER.toml + OPERATOR.toml)
    models = {"half": {"source": str(folder / "half.py"), "slots": 1}}
    with OperatedStack(folder, models) as stack, (folder / "gateway.log").open("wb") as log:
        stack.log = folder / "gateway.log"
        stack.start_worker(beat_s=0.3, lease_s=3.0)
        boss = stack.start_gateway(log=log, env={"PENSTOCK_KEYS_FILE": str(keys)})
        boss.headers.update(OPERATOR.header)
        stack.reader = stack.opened.enter_context(GatewayClient(base_url=boss.base_url, headers=READER.header))
        stack.await_ready()
        yield stack


def test_a_paused_model_takes_jobs_and_runs_none_until_it_is_resumed_also_after_a_restart(stack: OperatedStack) -> None:
    assert stack.act("/v1/models/half/pause")["paused"]
    eventually(lambda: stack.boss.get("/v1/models/half/rollout").json()["paused"] == {"followed": True})
    jobs = stack.submit(3)
    last = stack.boss.post("/v1/models/half/jobs", json=4).json()
    assert "eta_s" not in last
    stack.worker.kill()
    stack.worker.start()
    eventually(lambda: stack.boss.get("/v1/workers").json()["data"])
    queue = stack.queue()
    assert (queue["paused"], queue["depth"], queue["in_flight"]) == (True, 4, 0)
    assert stack.boss.get("/v1/scaling").json()["work_s"] == 0.0
    refused = stack.boss.post("/predictions/half", json=4)
    assert (refused.status_code, refused.json()["code"]) == (503, "no_worker")
    assert "paused" in refused.json()["detail"]
    assert stack.boss.get("/readyz").status_code == 200
    assert 'penstock_model_paused{model="half"} 1.0' in stack.boss.get("/metrics").text
    assert {stack.status(job) for job in jobs} == {"queued"}
    assert not stack.act("/v1/models/half/resume")["paused"]
    # The next test pauses the model: a job that still waited then would count against its limit.
    eventually(lambda: {stack.status(job) for job in (*jobs, last["id"])} == {"succeeded"}, timeout_s=60.0)


def test_a_limit_changes_for_the_next_job_and_null_gives_it_back(stack: OperatedStack) -> None:
    stack.act("/v1/models/half/pause")
    changed = stack.boss.put("/v1/models/half/limits", json={"max_queue_depth": 2, "result_ttl_s": 60})
    assert changed.status_code == 200
    # Not 2.0, which the store would not take for a count.
    assert '"max_queue_depth":2,' in changed.text.replace(" ", "")
    jobs = stack.submit(2)
    refused = stack.boss.post("/v1/models/half/jobs", json=1)
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    back = stack.boss.put("/v1/models/half/limits", json={"max_queue_depth": None, "result_ttl_s": None})
    assert back.json()["limits"]["max_queue_depth"] == 10_000
    stack.act("/v1/models/half/resume")
    eventually(lambda: {stack.status(job) for job in jobs} == {"succeeded"})


@pytest.mark.parametrize("body", [{}, {"max_queue_depth": 0}, {"max_queue_depth": 1.5}, {"max_run_s": 3}, {"deadline_s": "9"}])
def test_a_limit_that_cannot_be_is_refused_with_what_can(stack: OperatedStack, body: dict[str, Any]) -> None:
    refused = stack.boss.put("/v1/models/half/limits", json=body)
    assert refused.status_code == 422
    assert "max_queue_depth" in refused.json()["hint"]


def test_a_purge_cancels_what_waits_in_bounded_steps(stack: OperatedStack) -> None:
    stack.act("/v1/models/half/pause")
    eventually(lambda: stack.boss.get("/v1/models/half/rollout").json()["paused"] == {"followed": True})
    jobs = stack.boss.post("/v1/models/half/jobs:batch", json=list(range(520))).json()["data"]
    later = stack.boss.post("/v1/models/half/jobs", params={"delay_s": 600}, json=1).json()["id"]
    assert stack.act("/v1/models/half/purge") == {"cancelled": 500, "has_more": True}
    assert stack.act("/v1/models/half/purge") == {"cancelled": 21, "has_more": False}
    assert stack.act("/v1/models/half/purge") == {"cancelled": 0, "has_more": False}
    assert {stack.status(one) for one in (jobs[0]["id"], jobs[-1]["id"], later)} == {"cancelled"}
    assert stack.queue()["depth"] == stack.queue()["delayed"] == 0
    stack.act("/v1/models/half/resume")
    [job] = stack.submit(1)
    eventually(lambda: stack.status(job) == "succeeded")


def test_a_drained_worker_takes_nothing_until_it_is_resumed(stack: OperatedStack) -> None:
    # The one that a test before this one killed is listed until its last beat is too old.
    eventually(lambda: len(stack.boss.get("/v1/workers").json()["data"]) == 1)
    [worker] = stack.boss.get("/v1/workers").json()["data"]
    assert stack.act(f"/v1/workers/{worker['name']}/drain") == {"name": worker["name"], "drained": True}
    eventually(lambda: stack.boss.get("/v1/workers").json()["data"][0]["drained"])
    [job] = stack.submit(1)
    eventually(lambda: stack.queue()["ready_slots"] == 0)
    assert stack.status(job) == "queued"
    stack.act(f"/v1/workers/{worker['name']}/resume")
    eventually(lambda: stack.status(job) == "succeeded")
    missing = stack.boss.post("/v1/workers/nobody/drain")
    assert missing.status_code == 404
    assert worker["name"] in missing.json()["hint"]


def test_every_act_is_in_the_audit_log_with_who_what_and_how_it_ended(stack: OperatedStack) -> None:
    stack.boss.put("/v1/models/half/limits", json={"deadline_s": 30})
    stack.boss.put("/v1/models/half/limits", json={"deadline_s": -1})
    refused = stack.reader.post("/v1/models/half/pause")
    assert refused.status_code == 403
    made = stack.boss.post("/v1/keys", json={"id": "ci", "roles": ["submit"]}).json()
    stack.boss.delete("/v1/keys/ci")
    stack.boss.put("/v1/models/half/limits", json={"deadline_s": None})
    acts = stack.acts()[:5]
    assert [(act["act"], act["by"], act["outcome"]) for act in acts] == [
        ("change limits", "boss", "done"),
        ("revoke key", "boss", "done"),
        ("make key", "boss", "done"),
        ("change limits", "boss", "refused 422"),
        ("change limits", "boss", "done"),
    ]
    assert [act["on"] for act in acts] == [{"model": "half"}, {"key_id": "ci"}, {}, {"model": "half"}, {"model": "half"}]
    assert (acts[2]["said"], acts[4]["said"]) == ({"key": "ci", "owner": "ci", "roles": '["submit"]'}, {"deadline_s": 30})
    assert made["key"].partition(".")[2] not in stack.boss.get("/v1/audit").text
    assert all(re.fullmatch(r"\d{4}-.*Z", act["at"]) for act in acts)
    numbers = [act["number"] for act in acts]
    page = stack.boss.get("/v1/audit", params={"before": numbers[1], "limit": 2}).json()
    assert [act["number"] for act in page["data"]] == numbers[2:4]
    assert page["has_more"]
    assert stack.reader.get("/v1/audit").status_code == 403


def test_changes_of_models_and_of_the_failed_inbox_are_acts_too_those_that_are_refused_included(stack: OperatedStack) -> None:
    [one, *_] = stack.failed(2)
    stack.boss.post("/v1/models/half/jobs", params={"delay_s": 600, "tags": "nightly"}, json=1)
    half = "/v1/models/half"
    asked: list[tuple[str, str, Any, str]] = [
        ("PUT", f"{half}/workers", {"workers": 1}, "scale"),
        ("PUT", f"{half}/default", {"version": "1"}, "switch default"),
        ("POST", f"{half}/versions", {"version": "2", "source": "../half.py"}, "load version"),
        ("DELETE", f"{half}/versions/9", None, "unload version"),
        ("PUT", f"{half}/split", {"weights": {"1": 100}}, "split"),
        ("DELETE", f"{half}/split", None, "end split"),
        ("DELETE", f"{half}/rollout", None, "undo changes"),
        ("POST", "/v1/failed:dismiss", {"ids": [one]}, "dismiss failed"),
        ("POST", "/v1/failed:replay", {"model": "half"}, "replay failed"),
        ("POST", "/v1/jobs:cancel?tag=nightly", None, "cancel tag"),
    ]
    ended = [stack.boss.request(method, path, json=body).status_code for method, path, body, _ in asked]
    acts = list(reversed(stack.acts()[: len(asked)]))
    assert [act["act"] for act in acts] == [act for *_, act in asked]
    assert [act["outcome"] for act in acts] == ["done" if code < 400 else f"refused {code}" for code in ended]
    assert {act["by"] for act in acts} == {"boss"}
    assert [code for code in ended if code >= 400] == [422, 404]
    assert acts[0]["said"] == {"workers": 1}
    assert acts[8]["said"] == {"model": "half"}
    assert acts[9]["said"] == {"tag": "nightly"}


def test_an_act_that_changed_nothing_is_none_and_each_other_one_is_in_the_log_of_its_process_too(stack: OperatedStack) -> None:
    # Regression: a key with the role `submit` pushed out everybody's acts by dismissing nothing.
    before = stack.acts()[0]["number"]
    with GatewayClient(base_url=stack.url, headers=SENDER.header) as sender:
        for path, body in (
            ("/v1/failed:dismiss", {"model": "half"}),
            ("/v1/failed:dismiss", {"ids": []}),
            ("/v1/failed:replay", {"model": "half"}),
            ("/v1/jobs:cancel?tag=none", None),
            ("/v1/runs:cancel?tag=none", None),
        ):
            assert sender.post(path, json=body).status_code == 202, path
    assert stack.acts()[0]["number"] == before
    stack.act("/v1/models/half/resume")
    assert stack.acts()[0]["number"] > before
    lines = [json.loads(line) for line in stack.log.read_text().splitlines() if '"act_ended"' in line]
    assert [line["number"] for line in lines] == sorted(line["number"] for line in lines)
    assert (lines[-1]["act"], lines[-1]["by"], lines[-1]["on"], lines[-1]["outcome"]) == (
        "resume",
        "boss",
        {"model": "half"},
        "done",
    )
    assert not [line for line in lines if line["by"] == SENDER.id]


def test_nothing_is_done_that_cannot_be_written_down(stack: OperatedStack) -> None:
    store = stack.server.pid
    assert store is not None
    os.kill(store, signal.SIGSTOP)
    try:
        refused = stack.boss.post("/v1/models/half/pause")
    finally:
        os.kill(store, signal.SIGCONT)
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    assert not stack.queue()["paused"]


def test_the_same_from_a_shell(stack: OperatedStack) -> None:
    def run(app: typer.Typer, *arguments: str, given: str | None = None) -> Result:
        env = {"PENSTOCK_URL": str(stack.boss.base_url), "PENSTOCK_API_KEY": f"{OPERATOR.id}.{OPERATOR.secret}"}
        return CliRunner().invoke(app, list(arguments), env=env, input=given)

    assert "is paused" in run(models.app, "pause", "half").stdout
    eventually(lambda: stack.boss.get("/v1/models/half/rollout").json()["paused"] == {"followed": True})
    stack.submit(2)
    assert run(jobs.app, "cancel", "--model", "half", given="n\n").exit_code != 0
    assert stack.queue()["depth"] == 2
    assert json.loads(run(jobs.app, "cancel", "--model", "half", "--yes", "--json").stdout) == {"cancelled": 2}
    assert json.loads(run(models.app, "limits", "half", "--set", "max_attempts=7", "--json").stdout)["max_attempts"] == 7
    assert re.search(r"max_attempts +3\n", run(models.app, "limits", "half", "--set", "max_attempts=").stdout)
    run(models.app, "resume", "half")
    worker = json.loads(run(workers.app, "--json").stdout)["name"]
    assert "takes no more jobs" in run(workers.app, "drain", worker).stdout
    eventually(lambda: "drained, and holds none of its jobs" in run(workers.app).stderr)
    assert "takes jobs again" in run(workers.app, "resume", worker).stdout
    acts = [json.loads(line) for line in run(audit.app, "--limit", "3", "--json").stdout.splitlines()]
    assert [act["act"] for act in acts] == ["resume worker", "drain worker", "resume"]
    shown = run(audit.app, "--limit", "1").stdout
    assert all(word in shown for word in ("boss", "resume worker", worker[:12], "done"))
