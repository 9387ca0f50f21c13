"""What a handler starts ends with its child, whatever ends the child, and nobody else's process ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from penstock.model_spec import ModelSpec
from penstock.workers.devices.pins import Pin
from penstock.workers.ipc.frames import Ready
from penstock.workers.slot.child.family import end_orphans
from penstock.workers.slot.child.process import ChildProcess
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]

STARTING = f"""
import os, pathlib, signal, subprocess, time
import penstock

SLEEPER = {SLEEPER!r}

def fork(*, leaves):
    pid = os.fork()
    if pid == 0:
        if leaves and os.setsid() and os.fork():
            os._exit(0)
        note("daemon" if leaves else "fork", os.getpid())
        time.sleep(600)
    return pid

def note(name, pid):
    started = pathlib.Path(os.environ["TMPDIR"], name + ".part")
    started.write_text(str(pid))
    started.rename(started.with_suffix(""))

class Starting(penstock.Handler):
    def initialize(self, context):
        note("popen", subprocess.Popen(SLEEPER).pid)
        note("bare", subprocess.Popen(SLEEPER, env={{}}).pid)
        note("session", subprocess.Popen(SLEEPER, start_new_session=True).pid)
        deaf = subprocess.Popen(SLEEPER, preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
        note("deaf", deaf.pid)
        fork(leaves=False)
        fork(leaves=True)

    def inference(self, batch):
        return batch
"""
NAMES = ("popen", "bare", "session", "deaf", "fork", "daemon")
# `bare` has an empty environment, and nothing but its session says whose it is.
MARKED = tuple(name for name in NAMES if name != "bare")


@pytest.fixture
def source(tmp_path: Path) -> str:
    handler = tmp_path / "starting.py"
    handler.write_text(STARTING)
    return str(handler)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process of the same user that a child did not start."""
    with subprocess.Popen(SLEEPER) as process:
        try:
            yield process
        finally:
            process.kill()


def started(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ChildProcess, list[int]]:
    """Return a child that has loaded its model, and the pids of all that the handler started."""
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    child = ChildProcess(ModelSpec("m", source, warm_up=False), Pin((), 1), max_batch_size=1)
    eventually(lambda: any(isinstance(frame, Ready) for frame in child.wire.receive()), timeout_s=60.0)
    eventually(lambda: all((folder / name).exists() for name in NAMES), timeout_s=60.0)
    return child, [int((folder / name).read_text()) for name in NAMES]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def has_none_running(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


def kill_from_outside(child: ChildProcess) -> None:
    os.kill(child.pid, signal.SIGKILL)
    eventually(child.has_ended, timeout_s=60.0)


def kill(child: ChildProcess) -> None:
    child.kill()
    eventually(child.has_ended, timeout_s=60.0)


def stop(child: ChildProcess) -> None:
    child.stop()
    eventually(child.has_ended, timeout_s=60.0)


def close_at_once(_: ChildProcess) -> None:
    """The test closes it."""


def test_what_a_handler_started_ends_with_its_child(
    source: str, tmp_path: Path, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour, others = started(source, tmp_path / "neighbour", monkeypatch)
    with closing(neighbour):
        for end in (kill_from_outside, kill, stop, close_at_once):
            child, family = started(source, tmp_path / end.__name__, monkeypatch)
            with closing(child):
                assert all(map(is_running, family))
                end(child)
            eventually(partial(has_none_running, family))
            assert all(map(is_running, [*others, neighbour.pid, bystander.pid])), f"{end.__name__}: nobody else's process ends"
    eventually(partial(has_none_running, others))


@pytest.mark.parametrize("end", [os.kill, os.killpg], ids=["alone", "with its group"])
def test_what_a_handler_started_ends_soon_after_its_worker_was_killed(
    source: str,
    tmp_path: Path,
    redis_url: str,
    bystander: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[int, int], None],
) -> None:
    # Regression: it lived on until the next worker started on the machine; and for ever, if its environment had been emptied.
    neighbour, others = started(source, tmp_path / "neighbour", monkeypatch)
    folder = tmp_path / "killed"
    folder.mkdir()
    models = {"m": {"source": source, "warm_up": False}}
    with closing(neighbour), WorkerProcess(redis_url, tmp_path / "worker", models, env={"TMPDIR": str(folder)}) as worker:
        worker.await_ready()
        family = [int((folder / name).read_text()) for name in NAMES]
        assert all(map(is_running, family))
        end(worker.process.pid, signal.SIGKILL)
        eventually(partial(has_none_running, family))
        eventually(lambda: not watchers(folder))
        assert all(map(is_running, [*others, neighbour.pid, bystander.pid]))


def watchers(folder: Path) -> list[int]:
    """The processes that watch over a worker with this TMPDIR."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_one = b"family.py" in (place / "cmdline").read_bytes()
            if is_one and f"TMPDIR={folder}\0".encode() in (place / "environ").read_bytes() + b"\0":
                found.append(int(place.name))
    return found


def test_what_a_killed_worker_left_is_ended_by_the_next_one(
    source: str, tmp_path: Path, redis_url: str, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    neighbour, others = started(source, tmp_path / "neighbour", monkeypatch)
    folder = tmp_path / "killed"
    folder.mkdir()
    models = {"m": {"source": source, "warm_up": False}}
    with closing(neighbour), WorkerProcess(redis_url, tmp_path / "worker", models, env={"TMPDIR": str(folder)}) as worker:
        worker.await_ready()
        family = [int((folder / name).read_text()) for name in MARKED]
        end_orphans()
        assert all(map(is_running, family)), "their supervisor lives"
        # A worker of another test may start in between, and end them first.
        while not worker.events("orphaned_processes_ended"):
            family = [int((folder / name).read_text()) for name in MARKED]
            for pid in (*watchers(folder), int((folder / "bare").read_text())):
                os.kill(pid, signal.SIGKILL)
            worker.kill()
            worker.start()
            worker.await_ready()
            eventually(partial(has_none_running, family))
        assert all(map(is_running, [*others, neighbour.pid, bystander.pid]))


def test_a_client_of_mps_is_ended_by_the_daemon_and_then_killed(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the daemon notes the orders, and names no server; the child ends all the same."""
    program, orders = tmp_path / "bin" / "nvidia-cuda-mps-control", tmp_path / "orders"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nread order\necho "$order" >> "$ORDERS"\n')
    program.chmod(0o755)
    (tmp_path / "control").touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ORDERS", str(orders))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    child = ChildProcess(ModelSpec("m", source, warm_up=False), Pin((), 1, device="cuda:0", uuid="GPU-a"), max_batch_size=1)
    with closing(child):
        child.kill()
        child.kill()
        eventually(child.has_ended, timeout_s=60.0)
    assert orders.read_text() == "get_server_list\n"
