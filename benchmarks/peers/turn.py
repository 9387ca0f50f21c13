"""One turn of one server: it is started, its answers are checked, it is loaded, and ended."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.catalogue import ComparedServer
from benchmarks.peers.server import Launch, RunningServer, process_cpu_s, started_server
from benchmarks.peers.workloads import EMBEDDINGS, Workload, inputs_of, is_right
from penstock.errors import PenstockError
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load import LoadReport, LoadSpec, run_load
from penstock.loadtest.observed.costs import MachineReading, read_machine

CONCURRENCY = 64
_CHECKED_AT_ONCE = 16
_OPEN_CONNECTIONS = 512
_DRAIN_S = 20.0


@dataclass(frozen=True, slots=True)
class LoadLengths:
    """The seconds of each load. `learn_s`: the warm-up of a server that learns what its inputs cost."""

    warm_s: float = 2.0
    learn_s: float = 12.0
    busy_s: float = 4.0
    lone_s: float = 1.0
    open_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Latencies are those of answers with status 200; `errors` counts other answers by status. `open_p99_ms`: None without an
    open loop. `cpu_us`: CPU microseconds per good answer of all processes of the server under the busy load, the client not
    counted; `memory_mib`: their memory after it. `foreign_share`: the share of the machine that other processes took meanwhile.
    """

    batch: int
    rps: float
    p50_ms: float
    p99_ms: float
    lone_p50_ms: float
    open_p99_ms: float | None = None
    errors: dict[str, int] = field(default_factory=dict)
    foreign_share: float = 0.0
    limits: list[str] = field(default_factory=list)
    cpu_us: float = 0.0
    memory_mib: float = 0.0


def take_turn(folder: Path, peer: ComparedServer, workload: Workload, *, batch: int, lengths: LoadLengths) -> Turn:
    """Raises `PenstockError` if the server does not start, or gives a wrong answer."""
    with started_server(folder, peer, workload, batch) as server:
        check = AnswerCheck(server, _vectors(folder, workload))
        server.await_ready(check.first_is_right)
        check.check_all()
        return _loaded(server, check.requests(), lengths)


def _vectors(folder: Path, workload: Workload) -> list[list[float]]:
    return json.loads((folder / "model" / "vectors.json").read_text()) if workload.name == EMBEDDINGS else []


class AnswerCheck:
    """Sends inputs in the server's form, and checks its answers."""

    def __init__(self, server: RunningServer, vectors: Sequence[Sequence[float]]) -> None:
        self._server = server
        self._vectors = vectors
        self._peer = server.launch.peer
        self._workload = server.launch.workload.name

    def body(self, item: Any) -> bytes:
        return item if isinstance(item, bytes) else json.dumps(self._peer.wrap(self._workload, item)).encode()

    def first_is_right(self) -> bool:
        """False: there is no answer yet. Raises `PenstockError` for a wrong answer."""
        item = inputs_of(self._workload)[0]
        status, answer = self._server.ask(self._peer.path, self.body(item))
        if status == 200:
            self._check(item, answer)
        return status == 200

    def check_all(self) -> None:
        """Sends many requests at once, so that batches of several are checked too."""
        items = inputs_of(self._workload)
        with ThreadPoolExecutor(_CHECKED_AT_ONCE) as threads:
            list(threads.map(self._check_one, (items * _CHECKED_AT_ONCE)[: max(len(items), _CHECKED_AT_ONCE)]))

    def _check_one(self, item: Any) -> None:
        status, answer = self._server.ask(self._peer.path, self.body(item))
        if status != 200:
            raise PenstockError(f"status {status}: {answer[:300].decode('utf-8', 'replace')}; {self._server.tail()}")
        self._check(item, answer)

    def _check(self, item: Any, answer: bytes) -> None:
        value = self._peer.unwrap(self._workload, json.loads(answer))
        if not is_right(self._workload, item, value, self._vectors):
            raise PenstockError(f"a wrong answer: {answer[:200].decode('utf-8', 'replace')}")

    def requests(self) -> list[bytes]:
        target = parse_target(f"http://127.0.0.1:{self._server.launch.port}{self._peer.path}")
        headers = {"Content-Type": self._server.launch.workload.media_type()}
        bodies = [self.body(item) for item in inputs_of(self._workload)]
        return [request_bytes(target, method="POST", body=body, headers=headers) for body in bodies]


def _loaded(server: RunningServer, requests: list[bytes], lengths: LoadLengths) -> Turn:
    target = parse_target(f"http://127.0.0.1:{server.launch.port}{server.launch.peer.path}")
    plan = LoadSpec(target, itertools.cycle(requests), CONCURRENCY, warm_up_s(server.launch, lengths), drain_s=_DRAIN_S)
    run_load(plan)
    before = Spent.read(server)
    busy = run_load(replace(plan, duration_s=lengths.busy_s))
    after, memory_bytes = Spent.read(server), server.memory_bytes()
    lone = run_load(replace(plan, connections=1, duration_s=lengths.lone_s))
    opened = _opened(plan, server.launch.workload.open_rate, lengths)
    server.check()
    return replace(
        _turn(server.launch.batch, busy, lone, opened),
        cpu_us=1e6 * (after.server_s - before.server_s) / busy.summary.count,
        memory_mib=memory_bytes / 2**20,
        foreign_share=after.foreign_share(before),
    )


def warm_up_s(launch: Launch, lengths: LoadLengths) -> float:
    return lengths.learn_s if launch.peer.learns and launch.workload.uneven else lengths.warm_s


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds at one moment: of the server, of this process, which sends the load, and of the machine."""

    server_s: float
    client_s: float
    machine: MachineReading

    @staticmethod
    def read(server: RunningServer) -> Spent:
        return Spent(server.cpu_s(), process_cpu_s(psutil.Process()), read_machine())

    def foreign_share(self, earlier: Spent) -> float:
        own_s = self.server_s - earlier.server_s + self.client_s - earlier.client_s
        return self.machine.foreign_share(earlier.machine, own_s)


def _opened(plan: LoadSpec, rate: float, lengths: LoadLengths) -> LoadReport | None:
    if not rate:
        return None
    return run_load(replace(plan, rate=rate, connections=_OPEN_CONNECTIONS, duration_s=lengths.open_s))


def _turn(batch: int, busy: LoadReport, lone: LoadReport, opened: LoadReport | None) -> Turn:
    if not busy.summary.count or not lone.summary.count:
        raise PenstockError(f"no good answer under load: {busy.summary.errors}; {busy.bodies}")
    errors = dict(busy.summary.errors)
    if busy.unfinished:
        errors["unfinished"] = busy.unfinished
    result = busy.summary
    return Turn(
        batch,
        result.rps,
        result.p50_ms,
        result.p99_ms,
        lone.summary.p50_ms,
        opened.summary.p99_ms if opened else None,
        errors,
        limits=busy.limits,
    )
