"""Each pair of features meets in one row at least: the same story, in stores and deployments of every kind.

Each feature has tests of its own; what one lacks for another is found where both are on. Without `FEATURE_ROWS=all` one row per
kind of store runs, those in which most features are on.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.broker.server.users import GATEWAY, WORKER
from penstock.broker.store.sync import RedisStore
from penstock.client.sync import Client
from penstock.extensions.webhooks.webhook import new_signing_key
from tests.acceptance.test_cli import clean_environment
from tests.command import called_here
from tests.eventually import eventually
from tests.extensions.pipelines.integration.pipeline_stack import chain
from tests.faults.server import Server
from tests.integration.worker_process import HANDLERS
from tests.security.keyed import make
from tests.security.test_replicated_users import SECRET, let_in, refused, six_nodes, two_servers
from tests.sentinels import sentinel_group
from tests.stack import Stack
from tests.warm_process import start
from tests.webhook_receiver import Receiver, receiver

FACTORS: Mapping[str, Sequence[Any]] = {
    "store": ("server", "sentinel", "cluster"),
    "durability": ("local", "replicated", "everysec"),
    "users": (False, True),
    "partitions": (1, 2),
    "objects": (False, True),
    "gateways": (1, 2),
    "keyed": (False, True),
}
ROWS_OF_RUN = 200


class Row(NamedTuple):
    """One deployment. `objects`: large payloads are objects and not files. `keyed`: callers need a key."""

    store: str
    durability: str
    users: bool
    partitions: int
    objects: bool
    gateways: int
    keyed: bool

    def pairs(self) -> set[tuple[tuple[str, Any], tuple[str, Any]]]:
        return set(itertools.combinations(self._asdict().items(), 2))

    def weight(self) -> int:
        """How many features are on; `replicated` counts most."""
        return 4 * (self.durability == "replicated") + self.users + self.partitions + self.objects + self.gateways + self.keyed

    def __str__(self) -> str:
        return "-".join(f"{name}={value}" for name, value in self._asdict().items())


def rows_of_all_pairs() -> list[Row]:
    """Few rows that hold every pair, each the one that adds most to those before it."""
    left = [Row(*values) for values in itertools.product(*FACTORS.values())]
    missing = set[Any]().union(*(row.pairs() for row in left))
    rows = list[Row]()
    while missing:
        rows.append(max(left, key=lambda row: len(row.pairs() & missing)))
        missing -= rows[-1].pairs()
    return rows


ROWS = rows_of_all_pairs()
FULLEST = [max((row for row in ROWS if row.store == store), key=Row.weight) for store in FACTORS["store"]]
RUN = ROWS if os.environ.get("FEATURE_ROWS") == "all" else FULLEST
KEY = make("ann", "submit", "read", "manage")


def test_few_rows_hold_every_pair() -> None:
    assert len(ROWS) <= 14
    pairs = sum(len(one) * len(other) for one, other in itertools.combinations(FACTORS.values(), 2))
    assert len(set[Any]().union(*(row.pairs() for row in ROWS))) == pairs


@contextmanager
def three_servers(folder: Path) -> Iterator[tuple[str, list[Server]]]:
    """A primary that sentinels name."""
    with sentinel_group(folder) as group:
        yield group.url, group.servers


OPENED: Mapping[str, Callable[[Path], Any]] = {"server": two_servers, "sentinel": three_servers, "cluster": six_nodes}


class Stores:
    """One store of each kind, started when the first row needs it and emptied for each."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self._folder, self._opened = folder, opened
        self._open: dict[str, tuple[str, list[Server]]] = {}

    def get(self, kind: str, *, fsync: str) -> tuple[str, list[Server]]:
        if kind not in self._open:
            self._open[kind] = self._opened.enter_context(OPENED[kind](self._folder / kind))
        url, servers = self._open[kind]
        for server in servers:
            with server.client() as client:
                client.config_set("appendfsync", fsync)
                if client.info("replication")["role"] == "master":
                    client.flushall()
        store = RedisStore(url)
        store.load_functions()
        store.close()
        let_in(servers)
        return url, servers


@pytest.fixture(scope="module")
def stores(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with ExitStack() as opened:
        yield Stores(tmp_path_factory.mktemp("stores"), opened)


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def models(partitions: int) -> dict[str, dict[str, Any]]:
    stages = {name: {"source": f"{HANDLERS / 'stages.py'}:Add", "max_wait_s": 0.0} for name in ("a", "b", "c")}
    return {
        **{name: {**table, "partitions": partitions} for name, table in stages.items()},
        "spell": {"source": f"{HANDLERS / 'speller.py'}:spell", "partitions": partitions},
    }


@dataclass(frozen=True)
class Deployment:
    """Clients of the first and of the last gateway."""

    first: Client
    last: Client


@contextmanager
def deployed(row: Row, url: str, folder: Path, redis_url: str, hooks: Receiver) -> Iterator[Deployment]:
    env = {
        "PENSTOCK_STORE__DURABILITY": "replicated" if row.durability == "replicated" else "local",
        "PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key(),
        "PENSTOCK_WEBHOOKS__URLS": hooks.url,
    }
    env |= {"PENSTOCK_STORE__BLOB_URL": f"file://{folder}/objects"} if row.objects else {}
    env |= {"PENSTOCK_STORE__CELERY_URL": redis_url} if row.store == "cluster" else {}
    if row.keyed:
        (folder / "keys.toml").write_text(KEY.toml)
        env["PENSTOCK_KEYS_FILE"] = str(folder / "keys.toml")
    with (
        Stack(folder / "stack", models(row.partitions), store=as_user(url, WORKER, row), env=env) as stack,
        ExitStack() as opened,
    ):
        stack.start_worker(pipelines={"chain": chain()})
        stack.redis_url = as_user(url, GATEWAY, row)
        for _ in range(row.gateways):
            stack.start_gateway()
        opened.enter_context(runner(stack, env))
        key = f"{KEY.id}.{KEY.secret}" if row.keyed else None
        clients = [opened.enter_context(Client(str(gateway.base_url), api_key=key)) for gateway in stack.gateways]
        for client in clients:
            eventually(partial(served, client), timeout_s=60.0)
        yield Deployment(clients[0], clients[-1])


def as_user(url: str, user: str, row: Row) -> str:
    return url.replace("://", f"://{user}:{SECRET}@") if row.users else url


def served(client: Client) -> bool:
    """Whether the worker's models and its pipeline have ready slots."""
    slots = [slot["state"] for worker in client.workers() for slot in worker["slots"]]
    return slots == ["ready"] * 5 and "chain" in [model["name"] for model in client.models()]


@contextmanager
def runner(stack: Stack, env: Mapping[str, str]) -> Iterator[None]:
    """A process that drives runs, as gateways see it: with their user and folders."""
    own = {"PENSTOCK_REDIS_URL": stack.redis_url, "PENSTOCK_STORE__STATE_DIR": str(stack.folder / "state")}
    with (stack.folder / "runner.log").open("wb") as log:
        process = start("penstock.runs", env={**clean_environment(), **env, **own}, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("row", RUN, ids=str)
def test_the_same_story_comes_true(row: Row, stores: Stores, hooks: Receiver, tmp_path: Path, redis_url: str) -> None:
    url, servers = stores.get(row.store, fsync="everysec" if row.durability == "everysec" else "always")
    with deployed(row, url, tmp_path, redis_url, hooks) as clients:
        tell(clients, hooks, str(ROWS.index(row)))
    assert refused(servers) == []


def tell(clients: Deployment, hooks: Receiver, name: str) -> None:
    """What callers do: a job with a large payload, a repeat, a stream, a delay, a pipeline, a webhook and a run."""
    first, last = clients.first, clients.last
    large = {"n": 1, "pad": "x" * 100_000}
    job = first.submit("a", large, idempotency_key=name)
    assert last.submit("a", large, idempotency_key=name).id == job.id
    assert last.job(job.id).result(30.0) == {**large, "n": 2, "trail": ["a"]}
    assert list(first.stream("spell", {"text": "abc"})) == ["a", "b", "c"]
    assert last.job(first.submit("b", {"n": 1}, delay_s=0.2).id).result(30.0)["n"] == 2
    assert first.predict("chain", large)["n"] == 4
    assert last.job(first.submit("chain", large).id).result(30.0)["n"] == 4
    told = first.submit("c", {"n": 1}, webhook=f"{hooks.url}{name}")
    assert eventually(lambda: hooks.of(f"/{name}"))[0].event["data"]["id"] == told.id
    run = last.run("a", [{"n": n} for n in range(ROWS_OF_RUN)])
    run.wait(60.0)
    assert [output["n"] for output in run] == [n + 1 for n in range(ROWS_OF_RUN)]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PENSTOCK_STORE__DURABILITY": "replicated"}, "the embedded store has no replica"),
        ({"PENSTOCK_REDIS_URL": "redis+cluster://127.0.0.1:1/3"}, "a cluster is used by its database 0 alone"),
        ({"PENSTOCK_STORE__CELERY_URL": "redis+cluster://127.0.0.1:1"}, "Celery cannot use a cluster"),
    ],
)
def test_pairs_that_cannot_be_are_refused_with_the_settings(variables: dict[str, str], said: str, tmp_path: Path) -> None:
    done = called_here("config", "--check", cwd=tmp_path, env=clean_environment() | variables)
    assert done.returncode != 0
    assert said in done.stderr + done.stdout
