"""A store, workers and gateways as real processes, for whatever test needs several of them.

A file that tests a scene of its own has a subclass with the words of the scene; what starts and ends is here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from penstock.client.sync import Client
from penstock.embedded.server import EmbeddedServer
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess


class Stack:
    """What is started here ends with the block. All processes share one state folder, as those of `penstock up` do.

    `models` are tables as in penstock.toml, `env` further variables of every process. `store` is the URL of a store that is
    there already; without it the stack has one of its own, which no other test empties.
    """

    server: EmbeddedServer

    def __init__(
        self, folder: Path, models: Mapping[str, Any], *, store: str = "", env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.models = dict(models)
        self.redis_url = store
        self.workers: list[WorkerProcess] = []
        self.gateways: list[GatewayClient] = []
        self._env = {"PENSTOCK_STORE__STATE_DIR": str(folder / "state"), **(env or {})}
        self.opened = ExitStack()

    def __enter__(self) -> Self:
        if not self.redis_url:
            self.server = self.opened.enter_context(EmbeddedServer(self.folder / "store", fsync="everysec"))
            self.redis_url = self.server.url
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()

    def new_worker(self, name: str, models: Mapping[str, Any] | None = None, **settings: Any) -> WorkerProcess:
        """A worker that the caller starts; `env` of the settings are further variables. Its log lies in `folder/NAME`."""
        env = {**self._env, **settings.pop("env", {})}
        return WorkerProcess(self.redis_url, self.folder / name, self.models if models is None else models, env, **settings)

    def start_worker(self, name: str = "worker", **settings: Any) -> WorkerProcess:
        """A worker that begins to load its models; `await_ready` waits for all."""
        self.workers.append(self.opened.enter_context(self.new_worker(name, **settings)))
        return self.workers[-1]

    def new_gateway(self, **settings: Any) -> AbstractContextManager[GatewayClient]:
        """A gateway that lasts as long as its own block; the settings are those of `gateway_process`."""
        env = {**self._env, **settings.pop("env", {})}
        return gateway_process(self.redis_url, self.folder / "state", **{"models": self.models, "env": env, **settings})

    def start_gateway(self, **settings: Any) -> GatewayClient:
        self.gateways.append(self.opened.enter_context(self.new_gateway(**settings)))
        return self.gateways[-1]

    def await_ready(self) -> None:
        """Wait until all slots of all workers serve, and each gateway knows that."""
        for worker in self.workers:
            worker.await_ready()
        for gateway in self.gateways:
            eventually(partial(_is_ready, gateway))

    @property
    def worker(self) -> WorkerProcess:
        return self.workers[0]

    @property
    def http(self) -> GatewayClient:
        return self.gateways[0]

    @property
    def url(self) -> str:
        return str(self.http.base_url)

    @cached_property
    def client(self) -> Client:
        """The package's own client, of the first gateway."""
        return self.opened.enter_context(closing(Client(self.url)))

    def version(self, model: str, version: str = "1") -> dict[str, Any]:
        found: dict[str, Any] = self.client.model(model)["versions"][version]
        return found

    def slots(self, model: str) -> list[dict[str, Any]]:
        return [slot for worker in self.client.workers() for slot in worker["slots"] if slot["model"] == model]


def _is_ready(gateway: GatewayClient) -> bool:
    return gateway.get("/readyz").status_code == 200
