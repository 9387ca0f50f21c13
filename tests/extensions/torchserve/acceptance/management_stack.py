"""The stack behind the tests of TorchServe's management: a worker, gateways, a model store, and a server with archives."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2

from penstock.loadtest.stack import free_port
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.integration.worker_process import WorkerProcess

ECHO = "import penstock\n\n@penstock.model\ndef echo(x: int) -> str:\n    return 'version {0}'\n"
# No job of 7 ends before the file is there; the model's own first call has another number.
HELD = """
import os
import time
import penstock

@penstock.model
def held(x: int) -> str:
    while x == 7 and not os.path.exists({0!r}):
        time.sleep(0.01)
    return 'held'
"""
QUICK: dict[str, Any] = {"lease_s": 3.0, "beat_s": 0.3}


@dataclass
class ArchiveServer:
    """Serves `bodies` by path. A path of `stalled` gets its first bytes and then nothing, until `release` is set."""

    address: str
    bodies: dict[str, bytes] = field(default_factory=dict)
    stalled: set[str] = field(default_factory=set)
    redirects: dict[str, str] = field(default_factory=dict)
    begun: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)

    def put(self, name: str, body: bytes) -> str:
        self.bodies[f"/{name}"] = body
        return f"{self.address}/{name}"


class ManagementClient(httpx2.Client):
    """A client of a gateway's management. `main` is one of its main listener."""

    main: GatewayClient

    def answer(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        found = self.request(method, path, **options)
        return found.status_code, found.json()

    def names(self) -> list[str]:
        return [model["modelName"] for model in self.get("/models").json()["models"]]


def model_store(folder: Path) -> Path:
    store = folder / "store"
    store.mkdir()
    for version in (1, 2):
        (store / f"echo{version}.py").write_text(ECHO.format(version))
    (store / "broken.py").write_text("raise RuntimeError('no such weights')\n")
    (store / "held.py").write_text(HELD.format(str(folder / "open")))
    (store / "own.py").write_text(ECHO.format("own"))
    return store


def declared(folder: Path) -> dict[str, Any]:
    """The models that the settings of workers and gateways name."""
    return {name: {"source": str(folder / "store" / "own.py"), "version": "1"} for name in ("own", "spare")}


def worker_of(redis_url: str, folder: Path) -> WorkerProcess:
    models = declared(folder)
    return WorkerProcess(redis_url, folder / "w", models, model_dir=str(folder / "store"), **QUICK)


@contextmanager
def management(
    redis_url: str, folder: Path, *, apart: bool = True, processes: int = 1, log: Any = sys.stderr, **table: Any
) -> Iterator[ManagementClient]:
    """A gateway whose model API is on. `table` are settings of `[torchserve]` that stand over these."""
    port = free_port()
    wanted = {"enabled": True, "model_api": True, "model_store": folder / "store", "management_port": port if apart else 0}
    env = {f"PENSTOCK_TORCHSERVE__{name.upper()}": str(value) for name, value in (wanted | table).items()}
    models = declared(folder)
    more: dict[str, Any] = {"processes": processes, "cold": True} if processes > 1 else {}
    with gateway_process(redis_url, folder / "g", models=models, env=env, log=log, **more) as main:
        address = f"http://127.0.0.1:{port}" if apart else str(main.base_url)
        with ManagementClient(base_url=address, timeout=60.0) as client:
            client.main = main
            yield client


@contextmanager
def archive_server() -> Iterator[ArchiveServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            if self.path in site.redirects:
                self.send_response(302)
                self.send_header("location", site.redirects[self.path])
                self.send_header("content-length", "0")
                self.end_headers()
                return
            body = site.bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            if self.path in site.stalled:
                self.wfile.write((body or b"")[:16])
                self.wfile.flush()
                site.begun.set()
                site.release.wait(60.0)
                return
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = ArchiveServer(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield site
    finally:
        site.release.set()
        server.shutdown()
        server.server_close()


# A pattern that spells no host.
ANY_HOST = "http://.*/open/.*"


@contextmanager
def with_worker(redis_url: str, folder: Path, site: ArchiveServer) -> Iterator[ManagementClient]:
    """A worker and a gateway that may fetch archives from `site`."""
    with (
        worker_of(redis_url, folder) as worker,
        management(redis_url, folder, allowed_urls=f"{site.address}/.*", max_archive_bytes=100_000) as found,
    ):
        worker.await_ready()
        yield found


def status(text: str) -> dict[str, str]:
    return {"status": text}


def without_workers(model: str, version: str) -> dict[str, str]:
    head = f'Model "{model}" Version: {version} registered with 0 initial workers.'
    return status(f"{head} Use scale workers API to add workers for the model.")
