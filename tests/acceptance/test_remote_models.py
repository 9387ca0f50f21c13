"""Models that lie on a hub, in a bucket and at a URL, served by real processes; the command that fetches them ahead."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import psutil
import pytest
from obstore.store import from_url

from penstock.embedded.server import EmbeddedServer
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.acceptance.test_cli import clean_environment, started, stopped
from tests.acceptance.warm_command import run_command
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess
from tests.model_hub import Hub, model_hub
from tests.onnx_models import perceptron
from tests.s3_server import BUCKET

REPO, TOKEN = "org/net", "hf_hunter2-hunter2"
WIDTH = 4
NET, OTHER = (perceptron(width=WIDTH, depth=depth).SerializeToString() for depth in (1, 2))
INPUT = [0.5] * WIDTH


@dataclass
class Served:
    """A gateway and a worker whose three models lie elsewhere."""

    client: GatewayClient
    worker: WorkerProcess
    hub: Hub
    url: str
    folder: Path
    models: dict[str, Any]
    env: dict[str, str]

    def answer(self, model: str) -> Any:
        """What the model answers; the gateway learns half a second late that it is loaded."""

        def answered() -> Any:
            answer = self.client.post(f"/predictions/{model}", json=INPUT)
            assert answer.status_code == 200, answer.text
            return answer.json()

        return eventually(answered)

    def source(self, model: str) -> str:
        """Where the version came from; empty until a worker has announced it."""
        return str(self.client.get(f"/v1/models/{model}").json()["versions"]["1"].get("source", ""))

    def command(self, *arguments: str) -> Any:
        env = clean_environment() | self.env | {"PENSTOCK_URL": str(self.client.base_url)}
        return run_command(arguments, folder=self.folder, env=env)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with model_hub() as found:
        found.token = TOKEN
        found.push(REPO, {"onnx/net.onnx": NET, "README.md": b"A net."})
        found.plain["/files/net.onnx"] = NET
        yield found


@pytest.fixture(scope="module")
def served(
    hub: Hub, has_server: None, s3_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder, prefix = tmp_path_factory.mktemp("served"), f"models-{os.urandom(6).hex()}"
    with pytest.MonkeyPatch.context() as patched:
        for name, value in s3_environment.items():
            patched.setenv(name, value)
        obstore.put(from_url(f"s3://{BUCKET}"), f"{prefix}/net.onnx", NET)
    models = {
        "hubbed": {"source": f"hf://{REPO}"},
        "stored": {"source": f"s3://{BUCKET}/{prefix}/net.onnx"},
        "linked": {"source": f"{hub.url}/files/net.onnx#sha256={hashlib.sha256(NET).hexdigest()}"},
    }
    env = {**s3_environment, "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
    with (
        EmbeddedServer(folder / "store", fsync="everysec") as server,
        gateway_process(server.url, folder / "gateway", models=models) as client,
        WorkerProcess(server.url, folder / "worker", models, env) as worker,
    ):
        worker.await_ready()
        yield Served(client, worker, hub, server.url, folder, models, env)


def test_a_model_is_served_from_a_hub_a_bucket_and_a_url(served: Served) -> None:
    assert served.answer("hubbed") == served.answer("stored") == served.answer("linked")
    fetched = {line["model"]: line["source"] for line in served.worker.events("model_fetched")}
    eventually(lambda: fetched == {model: served.source(model) for model in served.models})


def test_the_commit_of_a_branch_is_part_of_what_is_shown(served: Served) -> None:
    source = f"hf://{REPO}@{served.hub.branches[REPO]['main']}/onnx/net.onnx"
    eventually(lambda: served.source("hubbed") == source)
    shown = served.command("models", "show", "hubbed")
    assert f"version 1: fetched from {source}" in shown.stdout, shown.stderr


def test_the_models_process_has_neither_token_nor_credentials(served: Served) -> None:
    children = psutil.Process(served.worker.process.pid).children()
    environments = [child.environ() for child in children if "penstock.workers.child" in child.cmdline()]
    assert len(environments) == 3
    for environment in environments:
        assert not {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY"} & environment.keys()
    assert TOKEN not in served.worker.log.read_text()


def test_a_new_machine_loads_the_commit_that_the_version_has_although_the_branch_has_moved(served: Served) -> None:
    before, commit = served.answer("hubbed"), served.hub.branches[REPO]["main"]
    served.hub.push(REPO, {"onnx/net.onnx": OTHER})
    served.worker.kill()
    new = {"hubbed": served.models["hubbed"], "moved": served.models["hubbed"]}
    with WorkerProcess(served.url, served.folder / "new", new, served.env) as worker:
        worker.await_ready()
        assert served.answer("hubbed") == before
        assert commit in served.source("hubbed")
        moved = eventually(lambda: served.source("moved"))
        assert served.hub.branches[REPO]["main"] in moved, "another model starts at the branch's commit of now"
        assert served.answer("moved") != before


def test_a_source_that_cannot_be_had_is_reported_and_fetched_once_it_is_there(served: Served) -> None:
    late = {"late": {"source": "hf://org/late"}}
    with WorkerProcess(served.url, served.folder / "late", late, served.env) as worker:
        told = eventually(lambda: worker.events("child_unloadable"), timeout_s=60.0)[0]["error"]
        assert "hf://org/late: the server answers 404" in told
        served.hub.push("org/late", {"late.onnx": NET})
        worker.await_ready()


def command(folder: Path, hub: Hub, *arguments: str, **env: str) -> Any:
    whole = clean_environment() | {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN} | env
    return run_command(arguments, folder=folder, env=whole)


def test_a_model_is_fetched_ahead_listed_and_deleted_by_command(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(f'[models.net]\nsource = "hf://{REPO}"\n')
    done = command(tmp_path, hub, "models", "fetch", "--json")
    [line] = [json.loads(text) for text in done.stdout.splitlines()]
    assert line["source"] == f"hf://{REPO}"
    assert line["resolved"] == f"hf://{REPO}@{hub.branches[REPO]['main']}/onnx/net.onnx"
    assert (
        Path(line["path"]).stat().st_size == line["bytes"] == len(hub.repos[REPO][hub.branches[REPO]["main"]]["onnx/net.onnx"])
    )
    listed = command(tmp_path, hub, "models", "fetch", "--list", "--json")
    assert [json.loads(text)["source"] for text in listed.stdout.splitlines()] == [line["resolved"]]
    checked = command(tmp_path, hub, "config", "--check", PENSTOCK_MODELS_CACHE__OFFLINE="true")
    assert checked.returncode == 0, checked.stderr
    gone = command(tmp_path, hub, "models", "fetch", "--prune")
    assert line["resolved"] in gone.stdout
    assert not Path(line["path"]).exists()


def test_a_model_from_elsewhere_is_debugged_here(hub: Hub, tmp_path: Path) -> None:
    ran = command(tmp_path, hub, "debug", f"hf://{REPO}", "-i", json.dumps(INPUT), "--json")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / ".penstock" / "models").is_dir()


def test_what_cannot_be_fetched_ends_the_command_with_the_reason(hub: Hub, tmp_path: Path) -> None:
    refused = command(tmp_path, hub, "models", "fetch", "https://h.example/net.onnx")
    assert refused.returncode == 4
    assert "write https://h.example/net.onnx#sha256=..." in refused.stderr
    missing = command(tmp_path, hub, "models", "fetch", "hf://org/none")
    assert missing.returncode == 1
    assert "answers 404" in missing.stderr
    offline = command(tmp_path, hub, "up", "hf://org/none", PENSTOCK_MODELS_CACHE__OFFLINE="true")
    assert offline.returncode == 1
    assert "models_cache.offline is set" in offline.stderr


def test_up_serves_a_repository_by_its_address_and_finds_faults_before_anything_starts(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    (tmp_path / "penstock.toml").write_text(f'[models.net]\nsource = "hf://{REPO}"\ncompile = "default"\n')
    faulty = command(tmp_path, hub, "up")
    assert faulty.returncode == 4
    assert "models.net (version 1): compile = 'default' is an option of the runtime torch" in faulty.stderr
    up = started(tmp_path, f"hf://{REPO}")
    try:
        assert up.ready["models"] == ["net"]
        done = up.penstock("call", "net", json.dumps(INPUT))
        assert done.returncode == 0, done.stderr
    finally:
        assert stopped(up) == 0
