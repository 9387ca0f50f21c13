"""A server under comparison: started in a session of its own, awaited, and ended with all processes that it started."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.peers.catalogue import ComparedServer
from benchmarks.peers.environments import COMMON, DEFINITIONS, python_of, weights_path
from benchmarks.peers.workloads import Workload
from penstock.errors import PenstockError
from penstock.loadtest.stack import free_port

_READY_S = 90.0
_END_S = 15.0
_POLL_S = 0.1
_ANSWER_S = 60.0
_LOG_CHARACTERS = 1_500


@dataclass(frozen=True, slots=True)
class Launch:
    """`folder` holds the environments and the model; `scratch`, on a disk, belongs to this start."""

    folder: Path
    peer: ComparedServer
    workload: Workload
    batch: int
    port: int
    scratch: Path


def variables(launch: Launch) -> dict[str, str]:
    """The environment variables of a server. Only penstock keeps PYTHONPATH, because it may run from a checkout, and finds the
    weights that its example loads."""
    own = [str(weights_path(launch.folder).absolute()), os.environ.get("PYTHONPATH", "")] if launch.peer.is_own else []
    return {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        "PYTHONPATH": os.pathsep.join([str(COMMON), *filter(None, own)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PEER_NAME": launch.peer.name,
        "PEER_WORKLOAD": launch.workload.name,
        "PEER_RAW": "1" if launch.workload.raw else "",
        "PEER_BATCH": str(launch.batch),
        "PEER_WAIT_MS": str(launch.workload.wait_ms),
        "PEER_PORT": str(launch.port),
        "PEER_MODEL": str((launch.folder / "model").absolute()),
        "PEER_SCRATCH": str(launch.scratch),
    }


class RunningServer:
    """A started server, whose first process leads a process group."""

    def __init__(self, launch: Launch, process: subprocess.Popen[bytes]) -> None:
        self.launch = launch
        self._process = process

    def await_ready(self, answers: Callable[[], bool]) -> None:
        """Returns when `answers` is true. Raises `PenstockError` if the server ends, or after a time limit."""
        give_up_at = time.monotonic() + _READY_S
        while not self._tried(answers):
            self.check()
            if time.monotonic() > give_up_at:
                raise PenstockError(f"no right answer within {_READY_S:.0f} s; {self.tail()}")
            time.sleep(_POLL_S)

    @staticmethod
    def _tried(answers: Callable[[], bool]) -> bool:
        try:
            return answers()
        except (OSError, http.client.HTTPException):
            return False

    def check(self) -> None:
        if self._process.poll() is not None:
            raise PenstockError(f"ended by itself with {self._process.returncode}; {self.tail()}")

    def ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Sends one POST; the status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.launch.port, timeout=_ANSWER_S)
        try:
            connection.request("POST", path, body, {"Content-Type": self.launch.workload.media_type()})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def tail(self) -> str:
        return f"the end of its log: {_log(self.launch.scratch).read_text(errors='replace')[-_LOG_CHARACTERS:]}"

    def processes(self) -> list[psutil.Process]:
        """All processes that the server started, also those that left its process tree, session or environment."""
        tree = self._descendants()
        return [process for process in psutil.process_iter() if process.pid in tree or self._owns(process)]

    def _descendants(self) -> set[int]:
        try:
            return {process.pid for process in psutil.Process(self._process.pid).children(recursive=True)}
        except psutil.NoSuchProcess:
            return set()

    def _owns(self, process: psutil.Process) -> bool:
        if process.pid == os.getpid():
            return False
        try:
            if os.getsid(process.pid) == self._process.pid or str(self.launch.scratch) in " ".join(process.cmdline()):
                return True
            return bool(process.environ().get("PEER_SCRATCH") == str(self.launch.scratch))
        except (OSError, psutil.Error):
            return False

    def cpu_s(self) -> float:
        """The CPU seconds of all processes of the server that run now."""
        return sum(map(process_cpu_s, self.processes()))

    def memory_bytes(self) -> int:
        """The memory of all processes of the server; a page that several of them share counts once (PSS)."""
        return sum(map(memory_of, self.processes()))

    def stop(self) -> None:
        """Asks the first process to end, then kills the group and all other processes of the server."""
        owned = self.processes()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for process in {*owned, *self.processes()}:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def process_cpu_s(process: psutil.Process) -> float:
    """0 if the process has ended."""
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def memory_of(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def _log(scratch: Path) -> Path:
    return scratch / "server.log"


@contextlib.contextmanager
def started_server(folder: Path, peer: ComparedServer, workload: Workload, batch: int) -> Iterator[RunningServer]:
    """A server that may not be ready yet. The scratch folder has a short name, because it holds sockets."""
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as scratch:
        launch = Launch(folder, peer, workload, batch, free_port(), Path(scratch))
        command = [str(python_of(folder, peer).absolute()), str(DEFINITIONS / peer.package / "start.py")]
        with _log(launch.scratch).open("ab") as log:
            process = subprocess.Popen(
                command, env=variables(launch), stdout=log, stderr=log, cwd=scratch, start_new_session=True
            )
        server = RunningServer(launch, process)
        try:
            yield server
        finally:
            server.stop()
