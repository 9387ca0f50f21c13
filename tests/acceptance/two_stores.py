"""A gateway and a worker over two stores of the test's own, either of which a test may freeze or kill."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.acceptance.test_cli import clean_environment
from tests.eventually import eventually
from tests.extensions.pipelines.integration.pipeline_stack import STAGES, PipelineWorker, stage
from tests.faults.server import Server

ADD = {"source": f"{STAGES}:Add", "max_wait_s": 0.0, "retry_delay_s": 0.05}
# `far` and `far-too` lie in the store b, all others in the main one. `asleep` and `far-too` are loaded with their first job.
IDLE = {**ADD, "min_workers": 0, "max_workers": 1, "idle_unload_s": 600}
MODELS: dict[str, Any] = {"near": ADD, "far": ADD, "asleep": IDLE, "far-too": IDLE}
PIPELINES: dict[str, Any] = {
    "line": {"stages": [stage("one", "near"), stage("two", "near", "one")]},
    "across": {"stages": [stage("one", "near"), stage("two", "far", "one")]},
}


@dataclass
class TwoStores:
    """`env`: the settings of stores, pipelines and whatever the test adds, for more processes of the deployment."""

    main: Server
    other: Server
    folder: Path
    env: dict[str, str]
    worker: PipelineWorker
    client: GatewayClient
    metrics_port: int

    @property
    def probe_env(self) -> dict[str, str]:
        """The settings of the worker, as a probe beside it has them."""
        own = {"PENSTOCK_REDIS_URL": self.main.url, "PENSTOCK_WORKER__METRICS_PORT": str(self.metrics_port)}
        return clean_environment() | self.env | own | {"PENSTOCK_MODELS": json.dumps(MODELS)}

    @contextmanager
    def frozen(self, server: Server) -> Iterator[None]:
        server.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            server.signal(signal.SIGCONT)

    @contextmanager
    def gateway(self, name: str) -> Iterator[GatewayClient]:
        """One more gateway."""
        with gateway_process(self.main.url, self.folder / name, models=MODELS, env=self.env) as client:
            yield client

    def submit(self, model: str, value: Mapping[str, Any] | None = None, **params: str) -> str:
        answer = self.client.post(f"/v1/models/{model}/jobs", json={"n": 1, **(value or {})}, params=params)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def status(self, job: str) -> str:
        answer = self.client.get(f"/v1/jobs/{job}", params={"wait": "2"})
        return str(answer.json()["status"]) if answer.status_code == 200 else answer.text

    def output(self, job: str, *, timeout_s: float = 30.0) -> Any:
        """That of a job, once it has succeeded."""
        eventually(lambda: self.status(job) == "succeeded", timeout_s=timeout_s)
        return self.client.get(f"/v1/jobs/{job}/result").json()


@contextmanager
def two_stores(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[TwoStores]:
    with ExitStack() as opened:
        main, other = (Server(folder / name, fsync="everysec") for name in ("main", "b"))
        for server in (main, other):
            server.start()
            opened.callback(server.stop)
        stores = {
            "PENSTOCK_STORES__B__URL": other.url,
            "PENSTOCK_STORES__B__MODELS": "far*",
            "PENSTOCK_PIPELINES": json.dumps(PIPELINES),
        }
        all_env = stores | dict(env or {})
        worker_settings: dict[str, Any] = {"beat_s": 0.5, "lease_s": 4.0, "sweep_s": 0.5, "metrics_port": free_port()}
        worker = opened.enter_context(
            PipelineWorker(main.url, folder / "worker", MODELS, PIPELINES, all_env, **worker_settings)
        )
        client = opened.enter_context(gateway_process(main.url, folder / "gateway", models=MODELS, env=all_env))
        made = TwoStores(main, other, folder, all_env, worker, client, worker_settings["metrics_port"])
        eventually(lambda: client.get("/readyz").status_code == 200, timeout_s=60.0)
        yield made
