"""Starts penstock with the digits model, submits every sample image as a job, and prints how each job went.

    python examples/digits/demo.py

The script leaves nothing behind: jobs are kept in a temporary folder, and the server ends with the script.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock import Client
from penstock.client.views import JobView
from penstock.errors import PenstockError

HERE = Path(__file__).resolve().parent
READY_TIMEOUT_S = 30.0
RESULT_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
LOG_LINES = 40
COLUMNS = ("file", "class", "probability", "queued ms", "batch", "preprocess ms", "inference ms", "postprocess ms", "total ms")


class NotReady(Exception):
    """The server ended, or was not ready in time."""


class NotEnded(Exception):
    """The server answered every request, but did not shut down properly."""


def main() -> int:
    """Returns 0 if every image got its answer and the server shut down; else prints the end of its log and returns 1."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        log = Path(folder) / "server.log"
        try:
            started_at = time.monotonic()
            with running_server(Path(folder), log) as url:
                console.print(f"ready in {time.monotonic() - started_at:.1f} s")
                show(console, url)
        except (NotReady, NotEnded, PenstockError) as error:
            console.print(f"[red]{type(error).__name__}: {error}[/red]", *log_tail(log), sep="\n")
            return 1
    return 0


@contextlib.contextmanager
def running_server(folder: Path, log: Path) -> Iterator[str]:
    """The URL of a ready server, which gets SIGTERM at the end of the block. Raises `NotEnded` if SIGTERM does not end it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        server = subprocess.Popen(command(port), stdout=output, stderr=output, cwd=folder, env=environment(os.environ, folder))
        try:
            wait_until_ready(server, url, time.monotonic() + READY_TIMEOUT_S)
            yield url
        finally:
            fault = stop(server)
    # Raised only if the block succeeded: an earlier error is the better reason.
    if fault:
        raise NotEnded(f"the server {fault}; the end of its log follows")


def command(port: int) -> list[str]:
    return [sys.executable, "-m", "penstock", "up", str(HERE / "penstock.toml"), "--port", str(port)]


def environment(outer: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The caller's environment without the settings of another penstock, whose jobs the demo must not touch."""
    kept = {name: value for name, value in outer.items() if not name.startswith("PENSTOCK_") and name != "REDIS_URL"}
    return {**kept, "PENSTOCK_STORE__STATE_DIR": str(folder / "state")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_ready(server: subprocess.Popen[bytes], url: str, give_up_at: float) -> None:
    # No proxy: one that is set in the environment would be asked for the loopback address too.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < give_up_at:
        if server.poll() is not None:
            raise NotReady(f"the server ended with exit code {server.returncode}; the end of its log follows")
        with contextlib.suppress(OSError), opener.open(f"{url}/readyz", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise NotReady(f"the server was not ready after {READY_TIMEOUT_S:.0f} s; the end of its log follows")


def stop(server: subprocess.Popen[bytes]) -> str:
    """Stop the server with SIGTERM, which drains it, else with SIGKILL; returns what went wrong, or ""."""
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        return f"did not end within {STOP_TIMEOUT_S:g} s of SIGTERM and had to be killed"
    return f"ended with exit code {server.returncode}" if server.returncode else ""


def show(console: Console, url: str) -> None:
    files = sorted((HERE / "images").glob("*.png"))
    with Client(url) as client:
        # All jobs are submitted before the first one is awaited, so that they share batches.
        handles = [client.submit("digits", file) for file in files]
        # The ended job has the batch and the timings; the result is only the output.
        ended = [(handle.wait(RESULT_TIMEOUT_S), handle.result(RESULT_TIMEOUT_S)) for handle in handles]
    outputs = [output for _, output in ended]
    table = Table(*COLUMNS, title=f"{len(files)} handwritten digits through {url}")
    for column in table.columns[1:]:
        column.justify = "right"
    for file, (job, output) in zip(files, ended, strict=True):
        table.add_row(file.name, *row(output, job))
    console.print(table)
    right = sum(output["label"] == labelled(file) for file, output in zip(files, outputs, strict=True))
    console.print(f"{right} of {len(files)} images read as labelled; the model never saw them in training")


def row(output: dict[str, Any], job: JobView) -> list[str]:
    batch = job.batch
    stages = (batch.preprocess_s, batch.inference_s, batch.postprocess_s) if batch else ()
    return [
        str(output["label"]),
        f"{output['probability']:.3f}",
        milliseconds(between(job.created_at, job.started_at)),
        f"{batch.size} ({batch.reason})" if batch else "",
        *(milliseconds(stage) for stage in stages or (None, None, None)),
        milliseconds(between(job.created_at, job.finished_at)),
    ]


def between(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.2f}"


def labelled(file: Path) -> int:
    """The digit in a sample's name, `<index>_<label>.png`."""
    return int(file.stem.partition("_")[2])


def log_tail(log: Path) -> list[str]:
    return log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:] if log.exists() else []


if __name__ == "__main__":
    sys.exit(main())
