from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.gateway_process import GatewayClient
from tests.security.keyed import keyed_gateway


@pytest.fixture(scope="package")
def gateway_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that receives the output of this folder's gateway."""
    return tmp_path_factory.mktemp("log") / "gateway.log"


@pytest.fixture(scope="package")
def gateway(redis_server: str, gateway_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    """One gateway with keys, which all tests of this folder share. The memory that it takes is its own, as in a real one.

    It ends with the folder: a gateway writes what it serves into the store again, and other tests expect an empty store.
    """
    folder = tmp_path_factory.mktemp("keyed")
    with gateway_log.open("wb") as log, keyed_gateway(redis_server, folder, log=log, cold=True) as client:
        yield client


_ADDRESSES = count(1)


@pytest.fixture
def strange_address() -> str:
    """A new loopback address for each test, so that wrong keys of one test do not count against the next test."""
    number = next(_ADDRESSES)
    return f"127.0.{1 + number // 250}.{1 + number % 250}"


@pytest.fixture
def stranger(gateway: GatewayClient, strange_address: str) -> Iterator[httpx2.Client]:
    """A client of the shared gateway that connects from `strange_address`."""
    transport = httpx2.HTTPTransport(local_address=strange_address, verify=False)
    with httpx2.Client(base_url=gateway.base_url, transport=transport, timeout=10.0) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def swept(redis_url: str) -> None:
    """Empties the store around each module: jobs that no worker runs would appear in the metrics of later tests."""
