"""A slot's child process as its supervisor sees it: start, give, hear, end. Never blocks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from penstock.backoff import Backoff
from penstock.model_spec import ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import FromChild, Item, LoadModel, RunBatch, RunShard, StopChild, SupervisorWire
from penstock.workers.ipc.progress_page import ProgressPage, Stage
from penstock.workers.ipc.shard_progress import ShardProgress

# What model code may see of the environment. Anything of ours stays out: a store's URL may hold a password.
_SYSTEM = ("PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD")
_COMPILERS = ("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
_TORCH = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TORCH_HOME", "TORCH_LOGS", "CUBLAS_WORKSPACE_CONFIG")
_HUGGING_FACE = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE")
_ALLOWED = frozenset({*_SYSTEM, *_COMPILERS, *_TORCH, *_HUGGING_FACE})
_ALLOWED_PREFIXES = ("PYTHON", "LC_", "CUDA_", "NVIDIA_", "XDG_", "TORCHINDUCTOR_", "TRITON_")
# There are some below these prefixes as well: NVIDIA_API_KEY, TORCHINDUCTOR_REDIS_URL.
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|REDIS|URL")
# ONNX Runtime's wheels report to their maker every few seconds unless told not to before the import; so may others.
_QUIET = {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
_OUT_OF_MEMORY_CODES = (137, -signal.SIGKILL)
_LOG_BYTES = 1 << 16
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BUFFER_BYTES = 1 << 20
_RESTART = Backoff(1.0, 60.0)


def child_environment(environment: Mapping[str, str], pin: Pin) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if _allowed(name)}
    return {**kept, **_QUIET, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **pin.environment()}


def _allowed(name: str) -> bool:
    return name in _ALLOWED or (name.startswith(_ALLOWED_PREFIXES) and not _SECRET.search(name))


class Restarts:
    """How long to wait before the next start: nothing, then 1 s, 2 s, 4 s ... 60 s, until a batch succeeds."""

    def __init__(self) -> None:
        self._failures = 0
        self.total = 0

    def failed(self) -> float:
        delay = _RESTART.delay_s(self._failures)
        self._failures += 1
        self.total += 1
        return delay

    def succeeded(self) -> None:
        self._failures = 0


class ChildProcess:
    """One life of a child; a restart is a new one. Must be started by the thread that owns it: it ends with that thread."""

    def __init__(self, spec: ModelSpec, pin: Pin, *, max_batch_size: int) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self._board = ProgressPage.create()
        self.wire = SupervisorWire(ours)
        self._process = self._spawn(theirs, pin)
        theirs.close()
        self.exit_fd = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        self.log_fd = self._process.stdout.fileno()
        os.set_blocking(self.log_fd, False)
        self.started_at = time.monotonic()
        self.ready = False
        self._numbers = 0
        self._shards = 0
        self._half_line = b""
        self.wire.send(_load_order(spec, pin, max_batch_size))

    def _spawn(self, theirs: socket.socket, pin: Pin) -> subprocess.Popen[bytes]:
        fds = (theirs.fileno(), self._board.fileno())
        return subprocess.Popen(
            [sys.executable, "-m", "penstock.workers.child", *map(str, fds), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=fds,
            env=child_environment(os.environ, pin),
            # A session of its own: Ctrl-C in the terminal reaches the supervisor only, which lets the batch end.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, items: Sequence[Item], profile_dir: str = "") -> int:
        """Send a batch, to be recorded in `profile_dir` if that is given; its number."""
        self._numbers += 1
        self.wire.send(RunBatch(self._numbers, list(items), profile_dir))
        return self._numbers

    def give_shard(self, item: Item) -> int:
        """Send a shard; its number, counted apart from the batches'."""
        self._shards += 1
        self.wire.send(RunShard(self._shards, item))
        return self._shards

    def receive(self) -> list[FromChild]:
        return self.wire.receive()

    def stage(self, number: int) -> tuple[Stage, float]:
        return self._board.stage(number)

    def recall(self, number: int) -> bool:
        return self._board.recall(number)

    @property
    def shards(self) -> ShardProgress:
        """How far its shards are."""
        return self._board.shards

    def read_log(self) -> list[str] | None:
        """The whole lines that the handler wrote since the last call; None at the end of the stream."""
        try:
            data = os.read(self.log_fd, _LOG_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        if len(self._half_line) > _LOG_BYTES:
            lines, self._half_line = [*lines, self._half_line], b""
        return [line.decode("utf-8", "replace") for line in lines if line.strip()]

    def resident_bytes(self) -> int:
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as statm:
                return int(statm.read().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            # It has just ended; its exit is reported elsewhere.
            return 0

    def stop(self) -> None:
        """Ask it to finish what it has and exit."""
        self.wire.send(StopChild())

    def kill(self) -> None:
        self._process.kill()

    def ended(self, *, within_s: float = 0.0) -> bool:
        try:
            self._process.wait(timeout=within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def how(self) -> str:
        """How it ended, in words for an operator."""
        return exit_in_words(self._process.returncode)

    def close(self) -> None:
        """Free all that is held; ends the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.wire.close()
        self._board.close()
        os.close(self.exit_fd)
        if self._process.stdout:
            self._process.stdout.close()


def exit_in_words(code: int | None) -> str:
    if code is None:
        return "still runs"
    if code in _OUT_OF_MEMORY_CODES:
        return "killed (SIGKILL): probably out of memory; set memory_limit_bytes or a smaller max_batch_size"
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def _load_order(spec: ModelSpec, pin: Pin, max_batch_size: int) -> LoadModel:
    return LoadModel(
        model=spec.name,
        version=spec.version,
        source=spec.source,
        device=pin.handler_device,
        threads=pin.threads,
        cores=pin.cores,
        max_batch_size=max_batch_size,
        memory_limit_bytes=spec.limits.memory_limit_bytes or 0,
        options=spec.options,
        task=spec.task,
        runtime=spec.runtime,
        warm_up=spec.warm_up,
        warm_budget_s=spec.limits.load_timeout_s / 2,
    )
