"""Photographs of pages: a real `penstock up` with real jobs, Flower and Prometheus beside it, seen by a real Chromium."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from penstock import Client, JobFailed
from penstock.loadtest.stack import free_port
from tests.acceptance.browser import browsing
from tests.monitoring.flower import LOGIN, flower
from tests.monitoring.prometheus import Prometheus

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from docs.images.catalogue import Photograph
    from penstock.client.handles.job_handle import JobHandle

_WIDTH = 1100
_MODELS = Path(__file__).parents[2] / "tests" / "blocks" / "models.py"
_SETTINGS = f"""
[models.captions]
source = "{_MODELS}:Slow"
workers = 2

[models.thumbnails]
source = "{_MODELS}:Flaky"

[models.scores]
source = "{_MODELS}:score"
"""


@dataclass
class PictureStack:
    """The servers whose pages are photographed, by the names that the catalogue uses, and a job that has ended."""

    servers: dict[str, str]
    job: str


def photograph(folder: Path, out: Path, wanted: Mapping[str, Photograph]) -> None:
    """Write these pictures below `out`, each from the running stack."""
    with _stack(folder, {one.server for one in wanted.values()}) as stack, browsing() as browser:
        for name, picture in wanted.items():
            _take(browser, stack, picture, out / name)
            print(f"photographed  {name}")


def _take(browser: Browser, stack: PictureStack, picture: Photograph, file: Path) -> None:
    user, password = LOGIN
    context = browser.new_context(
        viewport={"width": _WIDTH, "height": picture.height},
        http_credentials={"username": user, "password": password} if picture.server == "flower" else None,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(stack.servers[picture.server] + picture.path.format(job=stack.job, model="captions"))
    page.locator(picture.awaited).first.wait_for()
    # Charts are drawn from what comes by stream or is asked for after the page.
    page.wait_for_timeout(2_500)
    page.screenshot(path=file)
    context.close()


@contextmanager
def _stack(folder: Path, needed: set[str]) -> Iterator[PictureStack]:
    (folder / "penstock.toml").write_text(_SETTINGS)
    with ExitStack() as opened:
        url, worker_port = opened.enter_context(_penstock(folder))
        servers = {"dashboard": url}
        if "prometheus" in needed:
            ports = {"penstock-gateway": [urlsplit(url).port or 0], "penstock-worker": [worker_port]}
            servers["prometheus"] = opened.enter_context(Prometheus(folder / "prometheus", ports)).url
        if "flower" in needed:
            servers["flower"] = str(opened.enter_context(flower(folder)).base_url)
        yield PictureStack(servers, _work(url))


@contextmanager
def _penstock(folder: Path) -> Iterator[tuple[str, int]]:
    metrics = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env |= {"PENSTOCK_WORKER__METRICS_PORT": str(metrics), "PENSTOCK_DIE_WITH_PARENT": "1"}
    command = [sys.executable, "-m", "penstock", "up", "--port", "0", "--json"]
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"penstock up did not start: {(folder / 'up.log').read_text()}")
        yield str(json.loads(line)["url"]), metrics
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _work(url: str) -> str:
    """Have jobs end, fail and wait; return one that ended after a wait."""
    with Client(url) as client:
        list(client.map("scores", ({"a": n} for n in range(60))))
        first = client.submit_many("captions", [{"x": n} for n in range(8)])
        unlucky = client.submit_many("thumbnails", [{"x": (13, 12, 13, n)[n % 4]} for n in range(16)])
        for handle in (*first, *unlucky):
            _end(handle)
        client.submit_many("captions", [{"x": n} for n in range(240)])
        client.submit_many("captions", [{"x": n} for n in range(360)], priority="bulk")
        client.submit_many("scores", [{"a": n} for n in range(300)])
    return first[-1].id


def _end(handle: JobHandle) -> None:
    with suppress(JobFailed):
        handle.result(timeout_s=30.0)
