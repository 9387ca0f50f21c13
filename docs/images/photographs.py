"""Photographs of pages: a real `penstock up` with real jobs, Flower and Prometheus beside it, seen by a real Chromium."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import Browser, Page
from playwright.sync_api import TimeoutError as PageTimeout

from penstock import Client
from penstock.errors import JobFailed
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.loadtest.stack import free_port
from tests.acceptance.browser import browsing
from tests.monitoring.flower import LOGIN, flower
from tests.monitoring.prometheus import Prometheus

if TYPE_CHECKING:
    from docs.images.catalogue import Photograph
    from penstock.client.handles.job_handle import JobHandle

_WIDTH = 1100
# A page has few colors: with so many a picture is a third as large and looks the same.
_COLORS = 128
# How often a page is loaded that lacks what is awaited, and how long each of these loads may take to show it.
_LOADS, _LOAD_MS = 15, 6_000.0
# Events go there in vain, so that the page of those has some.
_NOWHERE = "http://127.0.0.1:9/"
_MODELS = Path(__file__).parents[2] / "tests" / "blocks" / "models.py"
_SETTINGS = f"""
[models.captions]
source = "{_MODELS}:Slow"
slots = 2

[models.thumbnails]
source = "{_MODELS}:Flaky"

[models.scores]
source = "{_MODELS}:score"

[models.objects]
source = "{_MODELS}:detect"

[webhooks]
urls = ["{_NOWHERE}"]
retry_s = [0.1, 0.2, 0.2]
circuit_s = [0.1, 0.2]
"""


@dataclass
class PictureStack:
    """The servers whose pages are photographed, by the names that the catalogue uses, a job and a run that have ended, and when
    the first job began.
    """

    servers: dict[str, str]
    job: str
    run: str
    began_at: float

    def keep_busy(self, seconds: float) -> None:
        """Have jobs run until they have for this long."""
        with Client(self.servers["dashboard"]) as client:
            while time.monotonic() < self.began_at + seconds:
                client.submit_many("captions", [{"x": n} for n in range(8)])
                client.submit_many("scores", [{"a": n} for n in range(40)])
                client.submit_many("thumbnails", [{"x": 13 if n % 3 else n} for n in range(3)])
                time.sleep(1.0)


def photograph(folder: Path, out: Path, wanted: Mapping[str, Photograph]) -> None:
    """Write these pictures below `out`, each from the running stack."""
    with _stack(folder, {one.server for one in wanted.values()}) as stack, browsing() as browser:
        for name, picture in sorted(wanted.items(), key=lambda one: one[1].after_s):
            stack.keep_busy(picture.after_s)
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
    page.goto(stack.servers[picture.server] + picture.path.format(job=stack.job, run=stack.run, model="captions"))
    _await_shown(page, picture.awaited)
    # Charts are drawn from what comes by stream or is asked for after the page.
    page.wait_for_timeout(picture.settles_ms)
    if picture.clicked:
        page.locator(picture.clicked).click()
    shot = page.locator(picture.part).first.screenshot() if picture.part else page.screenshot()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(_COLORS, dither=Image.Dither.NONE).save(file, optimize=True)
    context.close()


def _await_shown(page: Page, awaited: str) -> None:
    """Load the page again until it has this. What a model learned, for one, is on a page up to half a minute after its jobs."""
    for _ in range(_LOADS):
        try:
            page.locator(awaited).first.wait_for(timeout=_LOAD_MS)
        except PageTimeout:
            page.reload()
        else:
            return
    raise RuntimeError(f"{page.url} has no {awaited!r} after {_LOADS} loads")


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
        began_at = time.monotonic()
        job, run = _work(url, folder)
        yield PictureStack(servers, job, run, began_at)


@contextmanager
def _penstock(folder: Path) -> Iterator[tuple[str, int]]:
    metrics = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env |= {"PENSTOCK_WORKER__METRICS_PORT": str(metrics), "PENSTOCK_DIE_WITH_PARENT": "1"}
    env["PENSTOCK_WEBHOOKS__SIGNING_KEYS"] = new_signing_key()
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


def _work(url: str, folder: Path) -> tuple[str, str]:
    """Have jobs end, fail and wait, and operators act; return a job that ended after a wait, and a run."""
    with Client(url) as client:
        run = _run(client, folder)
        client.operators.pause("thumbnails")
        client.operators.resume("thumbnails")
        client.operators.limit("thumbnails", max_queue_depth=5_000)
        for n in range(3):
            client.submit("scores", {"a": n}, webhook=f"{_NOWHERE}orders")
        for size in (1, 2, 4, 8):
            for handle in client.submit_many("scores", [{"a": n} for n in range(size)]):
                _end(handle)
        list(client.map("scores", ({"a": n} for n in range(60))))
        first = client.submit_many("captions", [{"x": n} for n in range(8)])
        unlucky = client.submit_many("thumbnails", [{"x": (13, 12, 13, n)[n % 4]} for n in range(16)])
        for handle in (*first, *unlucky):
            _end(handle)
        client.submit_many("captions", [{"x": n} for n in range(240)])
        client.submit_many("captions", [{"x": n} for n in range(360)], priority="bulk")
        client.submit_many("scores", [{"a": n} for n in range(300)])
    return first[-1].id, run


def _run(client: Client, folder: Path) -> str:
    rows = folder / "orders.jsonl"
    rows.write_text("".join(json.dumps({"a": n}) + "\n" for n in range(4_000)))
    handle = client.run("scores", rows)
    handle.wait(timeout_s=60.0)
    return handle.id


def _end(handle: JobHandle) -> None:
    with suppress(JobFailed):
        handle.result(timeout_s=30.0)
