"""The lines of TorchServe's front end, as patterns made for its logs read them."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from penstock.extensions.torchserve.gateway.access_log import AccessLog
from penstock.gateway.telemetry.metrics import GatewayMetrics

ACCESS = re.compile(r"(\S+) \[INFO \] \S+ ACCESS_LOG - /([\d.]+):(\d+) \"(\w+) (\S+) (HTTP/[\d.]+)\" (\d+) (\d+)")


def scope(path: bytes = b"/predictions/m", query: bytes = b"") -> dict[str, Any]:
    return {
        "method": "POST",
        "path": path.decode("latin-1"),
        "raw_path": path,
        "query_string": query,
        "client": ("127.0.0.1", 5744),
        "http_version": "1.1",
    }


def lines(request: dict[str, Any], status: int) -> list[str]:
    said: list[str] = []
    AccessLog(said.append, clock=lambda: 1_700_000_000.25).log(request, status, 0.0123)
    return "".join(said).splitlines()


def test_an_answer_is_a_line_of_the_access_log_and_one_of_the_metrics() -> None:
    access, counted = lines(scope(), 200)
    found = ACCESS.fullmatch(access)
    assert found is not None
    assert found.groups() == ("2023-11-14T22:13:20,250", "127.0.0.1", "5744", "POST", "/predictions/m", "HTTP/1.1", "200", "12")
    host = socket.gethostname()
    assert counted.endswith(f"TS_METRICS - Requests2XX.Count:1.0|#Level:Host|#hostname:{host},timestamp:1700000000")


@pytest.mark.parametrize(("status", "name"), [(404, "Requests4XX"), (503, "Requests5XX")])
def test_errors_are_counted_by_their_kind(status: int, name: str) -> None:
    assert f" {name}.Count:1.0|" in lines(scope(), status)[1]


def test_a_client_writes_no_line_of_its_own() -> None:
    [access, _] = lines(scope(b"/a\r\n2020 [INFO ] \x00", b'q="1"'), 400)
    assert ACCESS.fullmatch(access)
    assert "/a??2020?[INFO?]???q=?1?" in access
    assert len(lines(scope(b"/" + b"x" * 100_000), 414)[0]) < 2_200


def test_the_gateway_logs_what_it_counts() -> None:
    said: list[str] = []
    metrics = GatewayMetrics()
    metrics.answers = AccessLog(said.append)
    metrics.on_answer("/predictions/{model}", scope(), 200, 0.001)
    assert metrics.answered() == [(200, 1.0)]
    assert len(said) == 1
