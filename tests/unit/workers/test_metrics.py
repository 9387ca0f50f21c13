from __future__ import annotations

import os
import socket
import urllib.request

import psutil
import pytest

from penstock.errors import ConfigError
from penstock.workers.metrics import Metrics


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_scrape_is_served_on_the_address_named_and_no_other() -> None:
    # It listened on every address of the machine, beside a gateway that shows nothing beyond loopback without a key.
    port = free_port()
    Metrics("w").serve("127.0.0.1", port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        assert b"penstock_batch_size" in answer.read()
    heard = [c.laddr for c in psutil.Process(os.getpid()).net_connections() if c.status == psutil.CONN_LISTEN]
    assert {address.ip for address in heard if address.port == port} == {"127.0.0.1"}


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=f"port {taken.getsockname()[1]}") as refused:
            Metrics("w").serve("127.0.0.1", taken.getsockname()[1])
    assert "worker.metrics_port" in str(refused.value.hint)


def test_without_a_port_nothing_is_opened() -> None:
    Metrics("w").serve("127.0.0.1", 0)
