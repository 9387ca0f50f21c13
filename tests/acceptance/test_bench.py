"""`penstock bench` against a real stack, a plain endpoint, other servers' paths, and a closed port.

The load always comes from processes of its own, also where the command runs in the process of the tests.
"""

from __future__ import annotations

import csv
import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from penstock.cli import exits
from penstock.loadtest import ceiling
from tests.acceptance.test_cli import COMMAND, SQUARE, Up, clean_environment, started, stopped
from tests.command import called_here

Bench = Callable[..., subprocess.CompletedProcess[str]]

LONG = ("--rate", "60", "--duration", "1.5", "--warm-up", "0.3", "--json")
QUICK = ("--rate", "60", "--duration", "0.8", "--warm-up", "0.2", "--json")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = started(tmp_path_factory.mktemp("bench"), str(SQUARE))
    yield running
    assert stopped(running) == 0, (running.folder / "up.log").read_text()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(ceiling, "_SECONDS", 0.1)
    return lambda *arguments: called_here("bench", *arguments, env=clean_environment())


@pytest.fixture
def bench_square(bench: Bench, up: Up) -> Bench:
    return lambda *arguments: bench(*arguments, "--url", up.ready["url"])


def report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON report. On a busy machine the load generator may be the bottleneck; the exit code must then say so too."""
    assert done.returncode in (exits.OK, exits.FAILED), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["generator_limited"] is (done.returncode == exits.FAILED)
    assert found["generator_limited"] is bool(found["generator"]["limits"])
    return found


def test_a_model_is_measured_from_outside_and_inside(up: Up, tmp_path: Path) -> None:
    page, sheet = tmp_path / "report.html", tmp_path / "report.csv"
    done = up.penstock("bench", "square", *LONG, "--deadline", "5", "--html", str(page), "--csv", str(sheet))
    found = report(done)
    outcome, inside = found["outcome"], found["inside"]
    assert outcome["errors"] == {}
    assert 40 < outcome["answered"] < 140
    assert outcome["answered"] == inside["answers"] == round(outcome["goodput_rps"] * 1.5)
    assert 0.0 < outcome["latency"]["p50_ms"] <= outcome["latency"]["p99_ms"] <= outcome["latency"]["max_ms"]
    assert set(inside["stages_ms"]) == {"queue", "preprocess", "inference", "postprocess", "rest"}
    assert sum(inside["stages_ms"].values()) == pytest.approx(outcome["latency"]["mean_ms"])
    assert sum(int(size) * count for size, count in inside["batch_sizes"].items()) == pytest.approx(inside["answers"], rel=0.01)
    assert set(inside["reasons"]) <= {"idle", "full", "wait", "deadline", "drain"}
    assert inside["counted"]["jobs_succeeded"] >= outcome["answered"]
    roles = {use["role"] for use in found["processes"]}
    assert {"gateway", "worker", "store", "generator"} <= roles
    assert [role.split()[0] for role in roles if role.endswith("square")] == ["child"]
    assert (found["subject"]["slots"], found["subject"]["max_batch_size"]) == (1, 8)
    assert "of 1.8 s: " in done.stderr
    with sheet.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["TS latency P50"]) == pytest.approx(outcome["latency"]["p50_ms"], abs=1e-3)
    written = page.read_text()
    assert len(written) < 1_000_000
    # The page's only reference is its empty icon, so a browser fetches nothing.
    assert re.findall(r"""(?:src|href)=['"]([^'"]*)""", written) == ["data:,"]
    assert "<script" not in written


@pytest.mark.parametrize("client", ["async", "submit"])
def test_jobs_are_measured_to_their_result_or_to_their_202(bench_square: Bench, client: str) -> None:
    found = report(bench_square("square", *QUICK, "--client", client))
    assert found["outcome"]["errors"] == {}
    assert found["outcome"]["answered"] > 20
    assert found["inside"]["source"].startswith("the records of ")
    assert ("rest" in found["inside"]["stages_ms"]) is (client == "async"), "a 202 has no part in what comes after it"


def test_several_processes_share_a_closed_loop(bench_square: Bench) -> None:
    arguments = ("--closed", "5", "--processes", "2", "--duration", "1", "--warm-up", "0", "--json", "--body", '{"x": 3}')
    found = report(bench_square("square", *arguments))
    assert found["generator"]["processes"] == 2
    assert len([use for use in found["processes"] if use["role"] == "generator"]) == 2
    assert found["outcome"]["answered"] >= 5


def test_ctrl_c_gives_the_report_of_what_was_measured(up: Up) -> None:
    arguments = ["bench", "square", "--rate", "50", "--duration", "60", "--warm-up", "0", "--json"]
    process = subprocess.Popen(
        [*COMMAND, *arguments, "--url", up.ready["url"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=up.folder,
        env=clean_environment(),
    )
    assert process.stderr is not None
    assert "of 60 s: " in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    found = json.loads(out)
    assert "Traceback" not in errors
    assert found["stopped"] is True
    assert found["outcome"]["answered"] > 0
    assert 0.0 < found["outcome"]["seconds"] < 30.0


def test_a_wrong_body_is_refused_before_anything_is_measured(bench_square: Bench) -> None:
    done = bench_square("square", "--body", '{"y": 4}')
    assert done.returncode == exits.REFUSED
    assert "422" in done.stderr
    assert "next: " in done.stderr


def test_an_unknown_model_is_reported_with_those_there_are(bench_square: Bench) -> None:
    done = bench_square("sqaure")
    assert done.returncode == exits.REFUSED
    assert "it serves: square" in done.stderr


def test_a_former_servers_path_is_measured_without_what_it_does_not_report(bench_square: Bench) -> None:
    found = report(bench_square("square", *QUICK, "--target", "torchserve", "--body", '{"x": 4}'))
    assert found["outcome"]["errors"] == {}
    assert found["subject"]["target"] == "torchserve"


class Endpoint(BaseHTTPRequestHandler):
    """A server other than penstock: an OIP model with metadata, a page, and a path that answers 429 from the second call on."""

    protocol_version = "HTTP/1.1"
    calls = 0

    def do_GET(self) -> None:
        if self.path == "/v2/models/net":
            return self._answer(200, {"name": "net", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]})
        Endpoint.calls += self.path == "/busy"
        return self._answer(429 if self.path == "/busy" and Endpoint.calls > 1 else 200, {"detail": "too much", "code": "busy"})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        right = sent == {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.0, 0.0]}]}
        self._answer(200 if right and self.path == "/v2/models/net/infer" else 400, {})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    # With the default backlog of five, some of the load's first connections would be retried a second later.
    request_queue_size = 128
    daemon_threads = True


@contextmanager
def endpoint() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Endpoint) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_any_http_endpoint_is_measured_and_what_it_does_not_report_is_named(bench: Bench) -> None:
    with endpoint() as url:
        found = report(bench(f"{url}/page", *QUICK))
    assert found["outcome"]["errors"] == {}
    assert found["subject"]["target"] == "http"
    assert found["inside"] is None
    assert any("only penstock reports" in note for note in found["notes"])
    assert [use["role"] for use in found["processes"] if use["role"] != "generator"] != [], (
        "the process behind a local port is found"
    )


def test_an_oip_models_input_is_made_from_its_metadata(bench: Bench) -> None:
    with endpoint() as url:
        found = report(bench("net", *QUICK, "--target", "oip", "--url", url))
    assert found["outcome"]["errors"] == {}
    assert found["outcome"]["answered"] > 20


def test_errors_are_counted_by_code_and_a_run_without_success_fails(bench: Bench) -> None:
    with endpoint() as url:
        done = bench(f"{url}/busy", *QUICK)
    found = json.loads(done.stdout)
    assert done.returncode == exits.FAILED
    assert found["outcome"]["errors"] == {"429": found["outcome"]["offered"]}
    assert found["outcome"]["said"] == {"429": "busy: too much"}


@pytest.mark.parametrize("target", ["penstock", "torchserve", "oip"])
def test_a_server_that_is_not_there_is_reported_with_what_to_do(bench: Bench, target: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        done = bench("square", "--target", target, "--url", url, "--body", "{}")
    assert done.returncode == exits.UNREACHABLE
    assert "cannot be reached" in done.stderr or "cannot reach" in done.stderr
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr
