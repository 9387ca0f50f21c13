"""TLS to stores that are more than one address: sentinels and their primary, nodes of a cluster. Certificates are looked at."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import redis

from penstock.broker.celery_connection import celery_connection
from penstock.broker.records import ClaimRequest, NewJob
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import WakeUps
from penstock.embedded.server import find_server
from penstock.errors import StoreUnavailable
from penstock.job import Payload, new_job_id
from tests.certificates import Authority
from tests.eventually import eventually
from tests.faults.server import Server
from tests.tls_front import tls_front

_SLOTS = 16_384


@pytest.fixture(scope="module")
def authority(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def sentinel_url(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A primary behind TLS, and a sentinel behind TLS that names the primary's address there."""
    folder, certificate = tmp_path_factory.mktemp("sentinel"), authority.issue("localhost")
    with ExitStack() as opened:
        primary = Server(folder / "primary", fsync="everysec", extra={"unixsocket": str(folder / "primary.sock")})
        primary.start()
        opened.callback(primary.stop)
        port = opened.enter_context(tls_front(str(folder / "primary.sock"), certificate))
        opened.enter_context(sentinel(folder, port))
        asked = opened.enter_context(tls_front(str(folder / "sentinel.sock"), certificate))
        yield f"rediss+sentinel://localhost:{asked}/main/0"


@contextmanager
def sentinel(folder: Path, primary: int) -> Iterator[None]:
    """One that names the primary by its host and this port. It cannot look at the primary itself, since it speaks no TLS."""
    lines = [
        "port 0",
        f"unixsocket {folder / 'sentinel.sock'}",
        f"dir {folder}",
        "sentinel resolve-hostnames yes",
        "sentinel announce-hostnames yes",
        f"sentinel monitor main localhost {primary} 1",
        "sentinel down-after-milliseconds main 3600000",
    ]
    (folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([str(find_server()), str(folder / "sentinel.conf"), "--sentinel"], stdout=log, stderr=log)
    try:
        eventually((folder / "sentinel.sock").exists)
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster_url(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node with all slots, which says that it is reached at its address behind TLS."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as opened:
        extra = {"cluster-enabled": "yes", "unixsocket": str(folder / "node.sock")}
        node = Server(folder / "node", fsync="everysec", extra=extra)
        node.start()
        opened.callback(node.stop)
        port = opened.enter_context(tls_front(str(folder / "node.sock"), authority.issue("localhost")))
        with node.client() as client:
            client.config_set("cluster-announce-hostname", "localhost")
            client.config_set("cluster-preferred-endpoint-type", "hostname")
            client.config_set("cluster-announce-port", str(port))
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, _SLOTS - 1)
            eventually(lambda: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")))
        yield f"rediss+cluster://localhost:{port}"


@pytest.fixture(params=["sentinel_url", "cluster_url"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


async def test_jobs_pass_over_tls_where_sentinels_or_a_cluster_say_where_to(url: str, authority: Authority) -> None:
    trusted = f"{url}?ssl_ca_certs={authority.file}"
    with closing(RedisStore(trusted)) as store, closing(WakeUps(trusted, "m", "w").open()):
        gateway = AsyncStore(trusted)
        await gateway.start()
        try:
            submitted = await gateway.submit(NewJob(new_job_id("m"), "1", Payload("application/json", b"7")))
            assert await gateway.health() is not None
        finally:
            await gateway.close()
        [job] = store.claim(ClaimRequest(queue="m", version="1", worker="w", nonce="n", limit=1)).jobs
        assert job.id == submitted.id


def test_a_certificate_of_an_unknown_authority_is_refused(url: str) -> None:
    with closing(RedisStore(url)) as store, pytest.raises(StoreUnavailable):
        store.now()


def test_celerys_connection_asks_sentinels_over_tls(sentinel_url: str, authority: Authority) -> None:
    from celery import Celery

    found = celery_connection(f"{sentinel_url}?ssl_ca_certs={authority.file}")
    with Celery(broker=found.url, set_as_current=False) as app:
        app.conf.update(broker_use_ssl=found.tls, broker_transport_options=found.options)
        with app.connection() as connection:
            connection.connect()
            assert connection.connected
    refused = celery_connection(sentinel_url)
    with Celery(broker=refused.url, set_as_current=False) as app:
        app.conf.update(broker_use_ssl=refused.tls, broker_transport_options=refused.options)
        with app.connection() as connection, pytest.raises((redis.ConnectionError, redis.sentinel.MasterNotFoundError)):
            connection.connect()
