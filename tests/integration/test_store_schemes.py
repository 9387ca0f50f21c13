"""URLs of stores, end to end: TLS with certificates that are looked at, in our own connections and in Celery's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis
from celery import Celery

from penstock.broker.celery_connection import celery_connection
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.sync import RedisStore
from penstock.broker.store.wake_ups import WakeUps
from penstock.errors import StoreUnavailable
from tests.certificates import Authority
from tests.integration.worker_process import HANDLERS, JobClient, WorkerProcess, await_listening
from tests.stock_celery import stock_celery
from tests.tls_front import tls_front

SQUARE = {"square": {"source": str(HANDLERS / "paced.py")}}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def tls_port(redis_url: str, authority: Authority) -> Iterator[int]:
    with tls_front(urlsplit(redis_url).path, authority.issue("localhost")) as port:
        yield port


@pytest.fixture
def tls_url(tls_port: int, authority: Authority) -> str:
    return f"rediss://localhost:{tls_port}/0?ssl_ca_certs={authority.file}"


async def test_all_connections_of_ours_go_over_tls(tls_url: str) -> None:
    with closing(RedisStore(tls_url)) as store, closing(WakeUps(tls_url, "m", "w").open()):
        name = store.identity()
    many = AsyncStore(tls_url)
    await many.start()
    await many.ping()
    assert await many.health() is not None
    await many.close()
    assert name


def test_a_certificate_of_another_authority_or_name_is_refused_by_us_and_by_celery(tls_port: int, authority: Authority) -> None:
    unknown = f"rediss://localhost:{tls_port}/0"
    for url in (unknown, f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={authority.file}"):
        with closing(RedisStore(url)) as store, pytest.raises(StoreUnavailable, match="certificate"):
            store.now()
    with stock(unknown) as app, pytest.raises(redis.ConnectionError, match="certificate"):
        app.connection().connect()


def stock(url: str) -> AbstractContextManager[Celery]:
    """A client of Celery with the options that the worker's own connection has."""
    found = celery_connection(url)
    return stock_celery(
        found.url,
        broker_use_ssl=found.tls,
        redis_backend_use_ssl=found.tls,
        broker_transport_options=found.options,
        result_backend_transport_options=found.options,
    )


def test_a_worker_works_over_tls_and_hears_remote_control(tls_url: str, tmp_path: Path) -> None:
    with (
        WorkerProcess(tls_url, tmp_path, SQUARE) as worker,
        closing(JobClient(tls_url, "square")) as client,
        stock(tls_url) as app,
    ):
        name = worker.await_ready()
        await_listening(app, name)
        sent = app.send_task("penstock.infer", args=["square", {"tag": 7}], queue="penstock.{square}")
        assert sent.get(timeout=30) == 7
        assert client.store.stats("square").ready == {0: 0, 6: 0, 9: 0}
