"""A gateway that requires keys, and one test key of every kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
from fastapi.routing import APIRoute

from penstock.access import digest_of, new_secret
from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.store.aio import AsyncStore
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.gateway.app import Gateway
from penstock.gateway.asgi.connection import Lifetime
from penstock.gateway.dashboard.router import is_page
from penstock.settings.tables import Settings
from tests.acceptance.gateway_process import GatewayClient, gateway_process

MODELS = {"square": {"source": "square.py:Square"}}
UNKNOWN_ID = "01k9xw3c5t8ze2m4v6b7n0q1rs-square"
_SERIAL = UNKNOWN_ID.partition("-")[0]
OTHER_IDS = {"file_id": f"file-{_SERIAL}", "batch_id": f"batch_{_SERIAL}", "run_id": _SERIAL}
REQUEST_ID = "the-callers-own"
# With these settings every extension that has pages shows them.
WITH_PAGES = {"PENSTOCK_WEBHOOKS__SIGNING_KEYS": new_signing_key()}


@dataclass(frozen=True)
class TestKey:
    """A key of the test gateway. `header` is the HTTP header that the holder of the key sends."""

    __test__ = False

    id: str
    roles: tuple[str, ...]
    owner: str = ""
    more: str = ""
    secret: str = ""

    @property
    def header(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.id}.{self.secret}"}

    @property
    def toml(self) -> str:
        head = f'[[keys]]\nid = "{self.id}"\nsha256 = "{digest_of(self.secret.encode())}"\nroles = {list(self.roles)}\n'
        return head + (f'owner = "{self.owner}"\n' if self.owner else "") + self.more + "\n"


def make(id: str, *roles: str, owner: str = "", more: str = "rate_per_s = 100000\nburst = 100000") -> TestKey:
    return TestKey(id, roles, owner or id, more, new_secret())


_PAST = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds")

ALICE = make("alice", "submit", "read", owner="team-a")
SENDER = make("sender", "submit", owner="team-a")
READER = make("reader", "read", owner="team-a")
BOB = make("bob", "submit", "read", owner="team-b")
BOSS = make("boss", "manage", owner="team-boss")
EXPIRED = make("expired", "submit", "read", "manage", owner="team-a", more=f"expires_at = {_PAST}")
LIMITED = make("limited", "submit", "read", more="rate_per_s = 0.05\nburst = 3")
SMALL = make("small", "submit", "read", more="max_open_jobs = 2")
KEYS = (ALICE, SENDER, READER, BOB, BOSS, EXPIRED, LIMITED, SMALL)


@contextmanager
def keyed_gateway(
    redis_url: str, folder: Path, *, keys: tuple[TestKey, ...] = KEYS, **settings: Any
) -> Iterator[GatewayClient]:
    """A gateway process that reads its keys from a file, such as a container platform mounts for secrets."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "keys.toml"
    file.write_text("".join(key.toml for key in keys))
    env = {"PENSTOCK_KEYS_FILE": str(file), **settings.pop("env", {})}
    with gateway_process(redis_url, folder, models=MODELS, env=env, **settings) as client:
        yield client


def _gateway(*, keyed: bool = True) -> Gateway:
    """A gateway object that is never started; the tests only read its routes."""
    nowhere, key = AsyncStore("redis://127.0.0.1:1"), {"id": "a", "sha256": "0123456789abcdef" * 4, "roles": ["manage"]}
    settings = Settings.load(None, WITH_PAGES, flags={"keys": [key] if keyed else None})
    return Gateway(settings, store=nowhere, blobs=LocalBlobs(Path("nowhere")), lifetime=Lifetime())


def routes(*, keyed: bool = True) -> dict[str, dict[str, Any]]:
    """The paths of the OpenAPI document. The tests read them, so that they attack a new route from its first day."""
    paths: dict[str, dict[str, Any]] = _gateway(keyed=keyed).parts.document()["paths"]
    return paths


def page_routes() -> list[tuple[str, str]]:
    """Method and path of each route of the dashboard. The OpenAPI document does not list these routes."""
    routers = _gateway().parts.routers
    found = [route for router in routers for route in router.routes if isinstance(route, APIRoute) and is_page(route.path)]
    return sorted((method, route.path) for route in found for method in route.methods or ())


ROUTES = routes()
RULES = _gateway().parts.rules
PAGES = page_routes()
OPERATIONS = [(method.upper(), path) for path, item in ROUTES.items() for method in item]
WITH_ID = [(method, path) for method, path in OPERATIONS if "{job_id}" in path]
# Loads a version, which is no job.
MAKES = "/v1/models/{model}/versions"
SUBMITS = [
    path for path, item in ROUTES.items() if "requestBody" in item.get("post", {}) and "{model}" in path and path != MAKES
]


def filled(path: str, **values: str) -> str:
    known = {
        "model": "square",
        "version": "1",
        "owner": "me",
        "job_id": UNKNOWN_ID,
        "code": "overloaded",
        **OTHER_IDS,
        # Callers choose it, so that it is no id of another owner's: test_cog.py.
        "prediction_id": "mine",
        "key_id": "nobody",
        "worker": "nobody",
        "name": "icon.svg",
        "place": "0",
        **values,
    }
    return re.sub(r"\{(\w+)\}", lambda found: known[found[1]], path)


def documented_roles(method: str, path: str) -> set[str]:
    """The roles that a route accepts according to the OpenAPI document; an empty set for a public route."""
    return {role for line in ROUTES[path][method.lower()]["security"] for role in line["key"]}


def send(
    client: httpx2.Client,
    method: str,
    path: str,
    *,
    key: TestKey | None = None,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> httpx2.Response:
    """Sends one request. The request id is always the same, so that refusals can be compared as texts."""
    given = {"x-request-id": REQUEST_ID, **(key.header if key else {}), **(headers or {})}
    body = {"json": {"x": 4}} if "requestBody" in ROUTES.get(path, {}).get(method.lower(), {}) else {}
    # The deadline is short, because a prediction waits for a worker if another test has announced one.
    params = (
        {"params": {"deadline_s": "0.2"}} if path.startswith(("/predictions", "/explanations")) and method == "POST" else {}
    )
    encoded = {name: value.encode("latin-1") for name, value in given.items()}
    return client.request(method, filled(path), headers=encoded, **{**body, **params, **more})  # type: ignore[arg-type]
