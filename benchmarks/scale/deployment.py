"""Hosts that are started, lost and started again: two of gateways behind nginx, two of workers, and one of all the rest.

A host is a network namespace with a group of processes and a folder of its own. The store, the blobs, the proxy and the callers
are on the host that stays. The proxy is the example of `compose/nginx/penstock.conf`, which names both gateways.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.stack import EXAMPLES
from penstock.access import digest_of, new_secret
from penstock.broker.store.sync import RedisStore
from penstock.client.sync import Client
from penstock.errors import PenstockError
from penstock.loadtest.stack import environment, free_port, log_tail
from tests.acceptance.nginx import PATH, Proxy, nginx
from tests.faults.server import Server
from tests.hosts import Host, HostNetwork

# The callers of worker hosts ask for the first, those of gateway hosts for the second.
MODEL, QUICK_MODEL = "steady", "noop"
BATCH_S = 0.1
STEADY = f"""
import time
import penstock

class Steady(penstock.Handler):
    sample = "x"

    def inference(self, batch):
        time.sleep({BATCH_S})
        return batch
"""
_START_S = 60.0
_GATEWAY = (sys.executable, "-m", "penstock.gateway")
_WORKER = (sys.executable, "-m", "penstock.cli.main", "worker")


class LostHost:
    """One host: it is started, lost, and started again with an empty folder."""

    def __init__(self, name: str, host: Host, folder: Path, variables: dict[str, str], command: tuple[str, ...]) -> None:
        self._folder = folder / name
        self.log = folder / f"{name}.log"
        self._host = host
        self._env = environment({**variables, "PENSTOCK_STORE__STATE_DIR": str(self._folder)})
        self._command = (*host.within, *command)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.join()
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log, cwd=self._folder)

    def cut(self) -> None:
        self._host.cut()

    def join(self) -> None:
        self._host.join()

    def kill(self) -> None:
        """SIGKILL to all of its processes at once; its folder goes too."""
        assert self._process is not None
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            for process in [*parent.children(recursive=True), parent]:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def pids(self) -> set[int]:
        """Raises `PenstockError` if it has ended by itself."""
        if self._process is None or self._process.poll() is not None:
            raise PenstockError(f"{self.log.stem} has ended; {log_tail(self.log)}")
        parent = psutil.Process(self._process.pid)
        return {parent.pid, *(process.pid for process in parent.children(recursive=True))}

    def await_listening(self) -> None:
        _await(lambda: bool(self.pids()) and b"gateway_listening" in self.log.read_bytes(), self)

    def await_loaded(self, store: RedisStore) -> None:
        def is_loaded() -> bool:
            pids = self.pids()
            slots = [slot for worker in store.workers() if worker.pid in pids for slot in worker.slots]
            return bool(slots) and all(slot.state == "ready" for slot in slots)

        _await(is_loaded, self)


def _await(check: Callable[[], bool], host: LostHost) -> None:
    give_up_at = time.monotonic() + _START_S
    while not check():
        if time.monotonic() > give_up_at:
            raise PenstockError(f"{host.log.stem} did not get ready within {_START_S:.0f} s; {log_tail(host.log)}")
        time.sleep(0.05)


class Deployment:
    """Two hosts of gateways, two of workers, and this one with the store."""

    def __init__(self, folder: Path, network: HostNetwork) -> None:
        self._folder, self._secret = folder, new_secret()
        self.store = Server(folder / "store", host=network.gate)
        shared = {
            "PENSTOCK_CONFIG": str(_write_settings(folder)),
            "PENSTOCK_REDIS_URL": self.store.url,
            "PENSTOCK_STORE__BLOB_DIR": str(folder / "blobs"),
            "PENSTOCK_WORKER__PINNING": "none",
            "PENSTOCK_KEYS_FILE": str(self._write_key(folder / "keys.toml")),
        }
        self.gateways, self._addresses = [], []
        for host, name in zip(network.hosts[:2], "ab", strict=True):
            port = free_port()
            self._addresses.append(f"{host.address}:{port}")
            own = {"PENSTOCK_GATEWAY__HOST": host.address, "PENSTOCK_GATEWAY__PORT": str(port)}
            self.gateways.append(LostHost(f"gateway-{name}", host, folder, {**shared, **own}, _GATEWAY))
        workers = zip(network.hosts[2:], "ab", strict=True)
        self.workers = [LostHost(f"worker-{name}", host, folder, shared, _WORKER) for host, name in workers]
        self._proxy: Proxy | None = None

    def _write_key(self, path: Path) -> Path:
        digest = digest_of(self._secret.encode())
        limits = "rate_per_s = 1_000_000\nburst = 1_000_000\n"
        path.write_text(f'[[keys]]\nid = "caller"\nsha256 = "{digest}"\nroles = ["submit", "read"]\n{limits}')
        return path

    def client(self) -> Client:
        """A client of the proxy, with the usual patience."""
        assert self._proxy is not None
        return Client(self._proxy.url, f"caller.{self._secret}", transport=self._proxy.transport())

    @contextmanager
    def running(self) -> Iterator[None]:
        hosts = [*self.gateways, *self.workers]
        with ExitStack() as opened:
            opened.callback(self.store.stop)
            self.store.start()
            for host in hosts:
                opened.callback(_end, host)
                host.start()
            for gateway in self.gateways:
                gateway.await_listening()
            (self._folder / "proxy").mkdir()
            self._proxy = opened.enter_context(nginx(self._folder / "proxy", self._addresses))
            with closing(RedisStore(self.store.url)) as store:
                for worker in self.workers:
                    worker.await_loaded(store)
            yield


def _write_settings(folder: Path) -> Path:
    (folder / "steady.py").write_text(STEADY)
    path = folder / "penstock.toml"
    tables = ((MODEL, folder / "steady.py"), (QUICK_MODEL, EXAMPLES / "noop.py"))
    path.write_text("".join(f'[models.{name}]\nsource = "{source}"\nmax_batch_size = 32\n' for name, source in tables))
    return path


def _end(host: LostHost) -> None:
    with suppress(AssertionError):
        host.kill()


def has_proxy() -> bool:
    return shutil.which("nginx", path=PATH) is not None
