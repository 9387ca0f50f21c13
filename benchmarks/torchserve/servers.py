"""TorchServe and penstock on the same model store and config.properties, each with all processes that it starts."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.catalogue import PEERS as COMPARED
from benchmarks.peers.catalogue import ComparedServer
from benchmarks.peers.environments import absent_reason
from benchmarks.torchserve.archives import Archive, build, file_name
from penstock.errors import PenstockError
from penstock.loadtest.stack import environment, free_port, log_tail

ROOT = Path(__file__).resolve().parents[2]
# The environment of `make bench-peers`, and what only the built-in vision handlers of TorchServe need.
PEERS = ROOT / "build" / "peers"
EXTRAS = ROOT / "build" / "torchserve-extras"
_EXTRA_PACKAGES = ("torchvision==0.28.0", "captum==0.9.0", "matplotlib==3.11.2")
_READY_S = 240.0
_END_S = 30.0
# The operators of torchvision whose names its import asks for.
_DECLARED = """import torch

_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
_LOGS = ("TEMP", "LOG_LOCATION", "METRICS_LOCATION")


@dataclass(frozen=True, slots=True)
class Site:
    """A folder with a model store in it, and the ports of one server. `lines` are further lines of config.properties."""

    folder: Path
    archives: Sequence[Archive]
    inference: int
    management: int
    metrics: int
    lines: Sequence[str] = ()

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"inference": self.inference, "management": self.management, "metrics": self.metrics}

    @property
    def config(self) -> Path:
        return self.folder / "config.properties"


def make_site(folder: Path, archives: Sequence[Archive], lines: Sequence[str] = ()) -> Site:
    """The store with these archives, and the settings that both servers read."""
    site = Site(folder, archives, free_port(), free_port(), free_port(), lines)
    site.store.mkdir(parents=True)
    for archive in archives:
        build(archive, site.store, folder / "parts")
    address = "http://127.0.0.1"
    settings = [
        f"inference_address={address}:{site.inference}",
        f"management_address={address}:{site.management}",
        f"metrics_address={address}:{site.metrics}",
        f"grpc_inference_port={free_port()}",
        f"grpc_management_port={free_port()}",
        f"model_store={site.store}",
        f"load_models={','.join(map(file_name, archives))}",
        "default_workers_per_model=1",
        "enable_model_api=true",
        "disable_token_authorization=true",
        *lines,
    ]
    site.config.write_text("\n".join(settings) + "\n")
    return site


class ModelServer:
    """A started server: its first process and all below it."""

    def __init__(self, site: Site, process: subprocess.Popen[bytes], log: Path) -> None:
        self.site, self.process, self._log = site, process, log

    def processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(self.process.pid)
            return [first, *first.children(recursive=True)]
        return []

    def await_ready(self) -> None:
        """Returns when each archive has a worker. Raises `PenstockError` if the server ends, or after a time limit."""
        waiting = {archive.name for archive in self.site.archives}
        give_up_at = time.monotonic() + _READY_S
        while waiting:
            waiting = {name for name in waiting if not self._has_worker(name)}
            if self.process.poll() is not None or time.monotonic() > give_up_at:
                raise PenstockError(f"not ready: {', '.join(sorted(waiting))}; {log_tail(self._log)}")
            time.sleep(0.2)

    def _has_worker(self, model: str) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.site.management, timeout=10)
        try:
            connection.request("GET", f"/models/{model}")
            response = connection.getresponse()
            known = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()
        return response.status == 200 and any(worker["status"] == "READY" for worker in known[0]["workers"])

    def stop(self) -> None:
        below = self.processes()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


@contextlib.contextmanager
def penstock(site: Site) -> Iterator[ModelServer]:
    """Ours, by the command that takes TorchServe's options."""
    command = [sys.executable, "-m", "penstock", "torchserve", *options(site)]
    with started(site, command, environment({})) as server:
        yield server


@contextlib.contextmanager
def torchserve(site: Site) -> Iterator[ModelServer]:
    """TorchServe from the environment of the peers. Raises `PenstockError` if that is not there."""
    reason = absent_reason(PEERS, _peer())
    if reason:
        raise PenstockError(f"TorchServe: {reason}")
    command = [str(PEERS / "torchserve" / "bin" / "torchserve"), *options(site)]
    with started(site, command, {**peer_variables(site), "PYTHONPATH": str(EXTRAS)}) as server:
        yield server


def peer_variables(site: Site) -> dict[str, str]:
    """The environment of TorchServe's processes, all of whose files lie in the site's folder."""
    home, found = PEERS / "torchserve" / "bin", os.environ
    return {
        **{name: value for name, value in found.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")},
        **dict.fromkeys(_LOGS, str(site.folder)),
        "PATH": f"{home}{os.pathsep}{found['PATH']}",
    }


def options(site: Site) -> list[str]:
    """What both commands are called with."""
    switches = ["--start", "--foreground", "--ncs", "--disable-token-auth", "--enable-model-api"]
    return [*switches, "--model-store", str(site.store), "--ts-config", str(site.config)]


@contextlib.contextmanager
def started(site: Site, command: Sequence[str], variables: Mapping[str, str]) -> Iterator[ModelServer]:
    path = site.folder / "server.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            command, env=dict(variables), stdout=log, stderr=log, cwd=site.folder, start_new_session=True
        )
    server = ModelServer(site, process, path)
    try:
        server.await_ready()
        yield server
    finally:
        server.stop()


def set_up() -> None:
    """Installs what TorchServe's vision handlers import. torchvision comes without its compiled operators' library: the
    handlers of pictures use none of them, so only their names are declared.
    """
    if (EXTRAS / "ready").exists():
        return
    shutil.rmtree(EXTRAS, ignore_errors=True)
    python = PEERS / "torchserve" / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--target", str(EXTRAS)]
    subprocess.run([*command, "--no-deps", *_EXTRA_PACKAGES[:2]], check=True)
    subprocess.run([*command, _EXTRA_PACKAGES[2], "tqdm"], check=True)
    (EXTRAS / "sitecustomize.py").write_text(_DECLARED)
    (EXTRAS / "ready").touch()


def _peer() -> ComparedServer:
    return next(peer for peer in COMPARED if peer.name == "torchserve")
