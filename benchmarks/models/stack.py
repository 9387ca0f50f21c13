"""One store and gateway for all rows of `make bench-models`, and for each row a worker and the loops to compare it with."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import IO

import msgspec
import uvloop

from benchmarks.models.inputs import inputs
from benchmarks.models.loop import LoopCount
from benchmarks.models.rows import Row, config_text
from penstock.broker.store.sync import RedisStore
from penstock.embedded.server import EmbeddedServer
from penstock.errors import PenstockError
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load_loop import LoadWire, ResponseRecorder
from penstock.loadtest.generator.summary import Samples
from penstock.loadtest.observed.costs import Usage, read_cpu, read_usage
from penstock.loadtest.stack import Processes, await_ready, free_port, log_tail, running
from penstock.model_spec import SlotInfo
from penstock.workers.devices.pins import Pin
from penstock.workers.slot.child.environment import child_environment

# Batches under way: one runs, one is claimed ahead, the others are in transit.
_BATCHES_AHEAD = 4
# With small batches of a fast model, more requests must be under way, or the queue runs empty between batches.
_LEAST_UNDER_WAY = 16
_READY_S = 600.0  # a compilation takes minutes
_POLL_S = 0.05
_DRAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class LoopLoad:
    """A closed loop's answers. `until`: the monotonic moment when sending ended. `cpu_s`: CPU seconds per item, by stage."""

    samples: Samples
    began_at: float
    until: float
    cpu_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LoopPace:
    """`cpu_s`: CPU seconds of the model's processes per item. A busy machine changes it less than the rate."""

    items_per_s: float
    cpu_s: float


class ModelLoops:
    """One process per worker of the row, each on the cores of one slot; all run at the same time. `devices`: the uuids of the
    slots' GPUs. `log`: the file that gets the processes' standard error."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]], *, devices: Sequence[str], log: Path) -> None:
        self._processes = processes
        self._log = log
        self.devices = devices

    def await_ready(self) -> None:
        for process in self._processes:
            self._answer(process)

    def ask(self, what: str, seconds: float) -> LoopPace:
        """Runs a command in all loops at once; the sum of their rates."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{what} {seconds}\n")
            process.stdin.flush()
        found = [msgspec.json.decode(self._answer(process), type=LoopCount) for process in self._processes]
        items = sum(counted.items for counted in found)
        return LoopPace(sum(one.items / one.seconds for one in found), sum(one.cpu_s for one in found) / items)

    def _answer(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise PenstockError(f"the loop without penstock ended with code {process.wait()}; {log_tail(self._log)}")
        return line


class ModelStack:
    """`folder` must lie on a real disk, because fsync in memory costs nothing. `ready_s`: how long a row's worker may load."""

    def __init__(self, folder: Path, server: EmbeddedServer, *, port: int, gateway_pid: int, ready_s: float) -> None:
        self._folder = folder
        self._server = server
        self._port = port
        self._ready_s = ready_s
        self._store = RedisStore(server.url)
        self._roots = [server.pid or 0, gateway_pid]
        self._loops_log = folder / "loops.log"

    def usage(self) -> Usage:
        return read_usage(self._roots)

    @contextmanager
    def row(self, row: Row) -> Iterator[ModelLoops]:
        """Starts the row's worker and loops; yields when all are ready."""
        config = self._folder / f"{row.name}.toml"
        config.write_text(config_text([row], state_dir=self._folder / "state", port=self._port))
        environment = {"PENSTOCK_CONFIG": str(config), "PENSTOCK_REDIS_URL": self._server.url}
        with self._rooted(), running(Processes(self._folder, environment), []) as worker, ExitStack() as ends:
            self._roots.append(worker.start("worker"))
            slots = self._await_slots(row, worker)
            loops = [ends.enter_context(self._loop(config, row, slot)) for slot in slots]
            self._roots += [loop.pid for loop in loops]
            devices = sorted({slot.device_uuid for slot in slots if slot.device_uuid})
            together = ModelLoops(loops, devices=devices, log=self._loops_log)
            together.await_ready()
            yield together

    @contextmanager
    def _rooted(self) -> Iterator[None]:
        """Removes this row's processes from the roots at the end, so that no other row is billed for them."""
        before = list(self._roots)
        try:
            yield
        finally:
            self._roots = before

    def _await_slots(self, row: Row, worker: Processes) -> list[SlotInfo]:
        give_up_at = time.monotonic() + self._ready_s
        while time.monotonic() < give_up_at:
            worker.check()
            slots = [slot for info in self._store.workers() for slot in info.slots if slot.model == row.name]
            if any(slot.state == "failed" for slot in slots):
                raise PenstockError(next(slot.error for slot in slots if slot.state == "failed"))
            ready = [slot for slot in slots if slot.state == "ready"]
            if len(ready) == row.slots and self._known(row):
                return ready
            time.sleep(_POLL_S)
        raise PenstockError(f"no worker was ready within {self._ready_s:.0f} s; {worker.tail()}")

    def _known(self, row: Row) -> bool:
        """Whether the gateway knows all slots of the row; before that it may refuse valid requests."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/v1/models/{row.name}", timeout=5) as answer:
            return bool(msgspec.json.decode(answer.read())["ready_slots"] == row.slots)

    @contextmanager
    def _loop(self, config: Path, row: Row, slot: SlotInfo) -> Iterator[subprocess.Popen[str]]:
        pin = Pin(slot.cores, slot.threads, device=slot.device, uuid=slot.device_uuid)
        command = [sys.executable, "-m", "benchmarks.models.loop", str(config), row.name]
        command += [",".join(map(str, slot.cores)), pin.handler_device]
        with self._loops_log.open("a") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=child_environment(os.environ, pin),
                text=True,
                bufsize=1,
            )
        try:
            yield process
        finally:
            _end(process)

    def load(self, row: Row, seconds: float) -> LoopLoad:
        """Sends requests over HTTP for `seconds`, with enough of them under way to keep every worker busy."""
        target = parse_target(f"http://127.0.0.1:{self._port}/predictions/{row.name}")
        requests = [
            request_bytes(target, method="POST", body=body.data, headers={"Content-Type": body.content_type})
            for body in inputs(row.model)
        ]
        loop = ClosedLoop(LoadWire(target), cycle(requests), ResponseRecorder())
        before, began_at = read_cpu(self._roots), time.perf_counter()
        under_way = max(_LEAST_UNDER_WAY, _BATCHES_AHEAD * row.batch * row.slots)
        uvloop.run(loop.run(under_way, seconds, drain_s=_DRAIN_S))
        samples = loop.recorder.samples
        if loop.unfinished or samples.errors():
            bodies = {code: body[:300].decode("utf-8", "replace") for code, body in loop.recorder.bodies.items() if code != 200}
            raise PenstockError(f"{loop.unfinished} requests had no answer, {samples.errors()} others failed: {bodies}")
        spent = read_cpu(self._roots).since(before)
        per_item = {stage: seconds / len(samples.statuses) for stage, seconds in spent.items()}
        return LoopLoad(samples, began_at, began_at + seconds, per_item)


def _end(process: subprocess.Popen[str]) -> None:
    pipes: list[IO[str] | None] = [process.stdin, process.stdout]
    for pipe in pipes:
        if pipe is not None:
            pipe.close()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def model_stack(folder: Path, rows: Sequence[Row], *, ready_s: float = _READY_S) -> Iterator[ModelStack]:
    """A store, and a gateway that knows the models of all rows."""
    port = free_port()
    config = folder / "penstock.toml"
    config.write_text(config_text(rows, state_dir=folder / "state", port=port))
    with EmbeddedServer(folder / "state") as server:
        environment = {"PENSTOCK_CONFIG": str(config), "PENSTOCK_REDIS_URL": server.url}
        with running(Processes(folder, environment), []) as gateway:
            pid = gateway.start("gateway")
            await_ready(port, gateway, path="/livez")
            yield ModelStack(folder, server, port=port, gateway_pid=pid, ready_s=ready_s)
