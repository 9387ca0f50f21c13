"""The gateways, the worker and the models behind the suite: started once for all doors."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from penstock.embedded.server import EmbeddedServer
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.loadtest.stack import free_port
from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS, WorkerProcess
from tests.webhook_receiver import Receiver, receiver

OBEYING = HANDLERS / "obeying.py"
KINDS = {"orders": "Orders", "vectors": "Vectors"}
# The version whose schema none of the suite's inputs fits.
STRANGE = "3"
SECRET = "a-secret-of-the-tests-of-doors-0123456789"
# The keys, by their names: what each may do, and how much.
KEYS: Mapping[str, Mapping[str, Any]] = {
    "all": {"roles": ["submit", "read", "manage"], "rate_per_s": 100_000.0, "burst": 100_000, "max_open_jobs": 1_000},
    "plain": {"roles": ["submit", "read"], "rate_per_s": 100_000.0, "burst": 100_000, "max_open_jobs": 1_000},
    "reader": {"roles": ["read"]},
    "slow": {"roles": ["submit", "read"], "rate_per_s": 0.01, "burst": 1},
    "few": {"roles": ["submit", "read"], "max_open_jobs": 1},
}
# Small, so that ten kilobytes are large.
INLINE_BYTES = 2_048
MAX_JSON_BYTES = 60_000
# A queue that takes nothing for so long is full: a gateway looks at its depth more often.
SURELY_FULL_S = 0.4
WORKER: dict[str, Any] = {"lease_s": 3.0, "beat_s": 0.2}


def models() -> dict[str, Any]:
    """Each kind with two versions and a strange one, and once with one place in its queue; `absent` has no worker."""
    found: dict[str, Any] = {}
    for name, kind in KINDS.items():
        source = {"source": f"{OBEYING}:{kind}", "warm_up": False}
        batches = {"max_batch_size": 8, "max_wait_s": 0.0}
        strange = {"source": f"{OBEYING}:Strange{kind}", "warm_up": False}
        versions = {"1": {**source, **batches}, "2": {**source, **batches}, STRANGE: strange}
        found[name] = {"default_version": "1", "versions": versions}
        found[f"tight-{name}"] = {**source, "max_batch_size": 1, "max_queue_depth": 1}
    return found


def absent() -> dict[str, Any]:
    return {"absent": {"source": f"{OBEYING}:Orders"}}


@dataclass
class Site:
    """One gateway with all its ports. Doors send their calls to it. `home`: the gateway that has what a call needs beforehand;
    None: this one.
    """

    http: GatewayClient
    redis_url: str
    ports: Mapping[str, int]
    log: Path
    home: Site | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    opened: ExitStack = field(default_factory=ExitStack)

    def once(self, name: str, make: Callable[[], AbstractContextManager[Any]]) -> Any:
        """What a door keeps open for as long as the site lasts: a channel, a client."""
        if name not in self.kept:
            self.kept[name] = self.opened.enter_context(make())
        return self.kept[name]

    def secret(self, key: str) -> str:
        return f"{key}.{SECRET}" if key in KEYS else key

    def bearer(self, key: str = "all") -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret(key)}"}

    def get(self, path: str, key: str = "all", **params: Any) -> httpx2.Response:
        return self.http.get(path, params=params, headers=self.bearer(key))

    def submit(self, model: str, body: str, key: str) -> httpx2.Response:
        headers = {**self.bearer(key), "content-type": "application/json"}
        return self.http.post(f"/v1/models/{model}/jobs", content=body, headers=headers)

    def submitted(self, model: str, body: str, key: str) -> str:
        """The id of a new job. A gateway takes a job that has just ended for a waiting one, for a moment."""
        answer = eventually(lambda: (made := self.submit(model, body, key)).status_code != 429 and made)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job: str, key: str = "all") -> dict[str, Any]:
        found: dict[str, Any] = self.get(f"/v1/jobs/{job}", key).json()
        return found

    def newest(self, model: str, count: int = 1) -> Any:
        """The newest job of a model, or the newest ones."""
        rows = self.get("/v1/jobs", model=model, limit=count).json()["data"]
        return rows if count > 1 else rows[0]

    def ended(self, job: str, *, timeout_s: float = 30.0) -> dict[str, Any]:
        """The record of a job after its end."""

        def end() -> dict[str, Any]:
            found: dict[str, Any] = self.get(f"/v1/jobs/{job}", wait=str(max(1, min(10, int(timeout_s))))).json()
            assert found.get("status") not in ("queued", "running"), f"{job} is {found['status']} still"
            return found

        return eventually(end, timeout_s=timeout_s)

    def is_served(self, model: str) -> bool:
        return bool(self.get(f"/v1/models/{model}").json()["ready"])

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        text = self.http.get("/metrics", params={"name[]": name}, headers=self.bearer()).text
        rows = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE)
        return sum(float(value) for said, value in rows if all(f'{k}="{v}"' in said for k, v in labels.items()))

    def accesses(self, part: str) -> int:
        """How many lines of the access log have this part."""
        return sum(" ACCESS_LOG " in line and part in line for line in self.log.read_text().splitlines())

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of the gateway's log with one event."""
        lines = (line for line in self.log.read_text().splitlines() if f'"{name}"' in line)
        return [json.loads(line) for line in lines if line.startswith("{")]


@dataclass
class Stack:
    """`main` serves all; `away` has a store that cannot be reached, `full` a disk without room."""

    main: Site
    away: Site
    full: Site
    worker: WorkerProcess
    hooks: Receiver
    folder: Path
    gates: int = 0

    def gate(self) -> Gatekeeper:
        self.gates += 1
        return Gatekeeper(self.folder / f"gate-{self.gates}")

    @contextmanager
    def occupied(self, model: str, *, key: str = "all", to_the_brim: bool = False) -> Iterator[None]:
        """The model runs a job that lasts until the end of the block, and its slot has the next batch, so that all others wait.
        `to_the_brim`: and its queue is full. Of another key than `all` there is the one job.
        """
        gate = self.gate()
        with gate.held():
            order = json.dumps(gate.order())
            body = json.dumps(order if model.endswith("vectors") else {"order": order})
            job = self.main.submitted(model, body, key)
            gate.await_begun()
            if to_the_brim:
                job = self._fill(model, body, key) or job
            if key == "all" and not to_the_brim:
                job = self.main.submitted(model, body, key)
                eventually(lambda: self.main.job(job)["status"] == "running")
            yield
        self.main.ended(job)

    def _fill(self, model: str, body: str, key: str) -> str:
        """Submit until the queue is full, and return the last job that it took.

        A slot may take one batch more than it runs, and the gateway learns of it a moment later.
        """
        taken, taken_at = "", time.monotonic()

        def is_full() -> bool:
            nonlocal taken, taken_at
            answer = self.main.submit(model, body, key)
            if answer.status_code != 429:
                taken, taken_at = str(answer.json()["id"]), time.monotonic()
            return time.monotonic() - taken_at > SURELY_FULL_S

        eventually(is_full)
        return taken

    def ready(self) -> None:
        """Wait until every slot of the models serves."""
        for name in models():
            eventually(partial(self._is_ready, name), timeout_s=60.0)

    def _is_ready(self, model: str) -> bool:
        versions = self.main.get(f"/v1/models/{model}").json()["versions"].values()
        return all(row.get("ready_slots") for row in versions)


@dataclass(frozen=True)
class Gatekeeper:
    """Holds the orders that name it."""

    path: Path

    def order(self, **more: Any) -> dict[str, Any]:
        return {"n": 4, "until": str(self.path), **more}

    def await_begun(self) -> None:
        eventually(self.path.with_name(f"{self.path.name}.begun").exists)

    def open(self) -> None:
        self.path.touch()

    @contextmanager
    def held(self) -> Iterator[Gatekeeper]:
        """Open at the end of the block, whatever happens in it."""
        try:
            yield self
        finally:
            self.open()


def _keys_file(folder: Path) -> str:
    path = folder / "keys.toml"
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    tables = [{"id": name, "sha256": digest, **members} for name, members in KEYS.items()]
    lines = [f"{member} = {json.dumps(value)}\n" for table in tables for member, value in table.items()]
    per_table = iter(lines)
    path.write_text("".join("[[keys]]\n" + "".join(next(per_table) for _ in table) for table in tables))
    return str(path)


def _settings(folder: Path, ports: Mapping[str, int], hooks: Receiver) -> dict[str, str]:
    return {
        "PENSTOCK_STORE__BLOB_DIR": str(folder / "blobs"),
        "PENSTOCK_STORE__INLINE_INPUT_BYTES": str(INLINE_BYTES),
        "PENSTOCK_STORE__RESERVE_BYTES": "0",
        "PENSTOCK_KEYS_FILE": _keys_file(folder),
        "PENSTOCK_LOG__JOBS": "all",
        "PENSTOCK_TORCHSERVE__ENABLED": "true",
        "PENSTOCK_TORCHSERVE__ACCESS_LOG": "true",
        "PENSTOCK_TORCHSERVE__GRPC_INFERENCE_PORT": str(ports["torchserve"]),
        "PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(),
        "PENSTOCK_WEBHOOKS__URLS": hooks.url,
        "PENSTOCK_GATEWAY__MAX_JSON_BYTES": str(MAX_JSON_BYTES),
        "PENSTOCK_GATEWAY__MAX_RAW_BYTES": str(2 * MAX_JSON_BYTES),
        "PENSTOCK_GATEWAY__GRPC_PORT": str(ports["oip"]),
    }


@contextmanager
def _site(redis_url: str, folder: Path, name: str, hooks: Receiver, env: Mapping[str, str]) -> Iterator[Site]:
    ports = {"oip": free_port(), "torchserve": free_port()}
    own = folder / name
    own.mkdir()
    settings = {**_settings(folder, ports, hooks), **env}
    with (own / "gateway.log").open("w") as log:
        known = {**models(), **absent()}
        with gateway_process(redis_url, own, models=known, env=settings, log=log) as http:
            found = Site(http, redis_url, ports, own / "gateway.log")
            with found.opened:
                yield found


def _announce(url: str, site: Site) -> None:
    """Have the gateway believe that each model has a worker."""
    for name in KINDS:
        hand = Hand(url, name)
        with closing(hand.store):
            hand.announce(VersionInfo())
        eventually(partial(site.is_served, name))


@contextmanager
def stack(redis_url: str, folder: Path, settings: Mapping[str, str]) -> Iterator[Stack]:
    """Everything, ready to serve. `settings` are further variables of each process."""
    inline = {"PENSTOCK_STORE__INLINE_OUTPUT_BYTES": str(INLINE_BYTES)}
    own = {"PENSTOCK_STORE__BLOB_DIR": str(folder / "blobs"), **inline, **settings}
    no_room = {**settings, "PENSTOCK_STORE__RESERVE_BYTES": str(10**18)}
    with ExitStack() as opened:
        hooks = opened.enter_context(receiver())
        worker = opened.enter_context(WorkerProcess(redis_url, folder / "worker", models(), own, **WORKER))
        main = opened.enter_context(_site(redis_url, folder, "main", hooks, settings))
        with EmbeddedServer(folder / "lost", fsync="everysec") as lost:
            away = opened.enter_context(_site(lost.url, folder, "away", hooks, settings))
            _announce(lost.url, away)
        full = opened.enter_context(_site(redis_url, folder, "full", hooks, no_room))
        away.home = full.home = main
        found = Stack(main, away, full, worker, hooks, folder)
        found.ready()
        yield found
