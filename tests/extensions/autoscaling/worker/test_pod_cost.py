"""The annotation of a worker's pod: written over TLS with the account's token, to a server that stands for Kubernetes' API."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.extensions.autoscaling.worker.pod_cost import BUSY, POD_COST_UNKNOWN, PodApi, PodCost, pod_api
from tests.certificates import Authority


@dataclass
class ApiServer:
    """What it was asked, as (path, token, content type, body); `status` is its answer."""

    port: int = 0
    status: int = 200
    asked: list[tuple[str, str, str, object]] = field(default_factory=list)


@contextmanager
def api_server(certificate: Path) -> Iterator[ApiServer]:
    found = ApiServer()

    class Api(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            found.asked.append((self.path, self.headers["authorization"], self.headers["content-type"], body))
            self.send_response(found.status)
            self.end_headers()
            self.wfile.write(b'{"message": "pods \\"w-1\\" is forbidden"}')

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def account(tmp_path: Path, authority: Authority) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("ml")
    (tmp_path / "ca.crt").write_bytes(authority.file.read_bytes())
    return tmp_path


class Worker:
    def __init__(self, api: PodApi) -> None:
        self.holding, self.ended = False, 0
        self.cost = PodCost(api, is_holding=lambda: self.holding, ended=lambda: self.ended)

    def look(self) -> None:
        self.cost.run_once(0.0)


def costs(server: ApiServer) -> list[object]:
    return [body for *_, body in server.asked]


def patch(cost: int) -> object:
    return {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": str(cost)}}}


def test_a_change_is_written_once_with_the_token_of_the_moment(authority: Authority, account: Path) -> None:
    with api_server(authority.issue("localhost")) as server:
        worker = Worker(PodApi("localhost", server.port, "w-1", account))
        worker.look()
        worker.holding = True
        (account / "token").write_text("second")
        worker.look()
        worker.look()
        path, token, kind, _ = server.asked[-1]
    assert costs(server) == [patch(0), patch(BUSY)]
    assert (path, token, kind) == ("/api/v1/namespaces/ml/pods/w-1", "Bearer second", "application/merge-patch+json")


def test_a_worker_that_ended_jobs_since_the_last_look_is_busy(authority: Authority, account: Path) -> None:
    with api_server(authority.issue("localhost")) as server:
        worker = Worker(PodApi("localhost", server.port, "w-1", account))
        worker.ended = 7
        worker.look()
        worker.look()
    assert costs(server) == [patch(BUSY), patch(0)]


def test_a_refusal_is_logged_once_and_the_cost_is_written_as_soon_as_it_may(authority: Authority, account: Path) -> None:
    with api_server(authority.issue("localhost")) as server, capture_logs() as logs:
        worker = Worker(PodApi("localhost", server.port, "w-1", account))
        server.status = 403
        worker.look()
        worker.look()
        server.status = 200
        worker.look()
        worker.look()
    assert len(server.asked) == 3
    [line] = logs
    assert line["event"] == POD_COST_UNKNOWN
    assert "403 Forbidden" in line["error"]
    assert "is forbidden" in line["error"]


def test_a_server_that_the_cluster_did_not_sign_gets_no_token(account: Path, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    with api_server(stranger.issue("localhost")) as server, capture_logs() as logs:
        Worker(PodApi("localhost", server.port, "w-1", account)).look()
    assert server.asked == []
    assert "CERTIFICATE_VERIFY_FAILED" in logs[0]["error"]


@pytest.mark.parametrize("lacking", ["token", "ca.crt"])
def test_an_account_without_its_files_ends_no_worker(account: Path, lacking: str) -> None:
    (account / lacking).unlink()
    with capture_logs() as logs:
        Worker(PodApi("localhost", 1, "w-1", account)).look()
    assert [line["event"] for line in logs] == [POD_COST_UNKNOWN]


def test_outside_kubernetes_and_without_a_name_nothing_is_written() -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert pod_api("w-1", inside) == PodApi("10.0.0.1", 443, "w-1")
    assert pod_api("", inside) is None
    assert pod_api("w-1", {}) is None
