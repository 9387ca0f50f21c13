"""The same archive under load on both servers, in turns: requests per second, latency alone, CPU and memory."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.server import memory_of, process_cpu_s
from benchmarks.torchserve import servers
from benchmarks.torchserve.archives import ARCHIVES
from benchmarks.torchserve.exchanges import picture
from benchmarks.torchserve.servers import ModelServer, Site, make_site
from penstock.errors import PenstockError
from penstock.loadtest.generator.connection import parse_target, request_bytes
from penstock.loadtest.generator.load import LoadReport, LoadSpec, run_load

CALLERS = 64
BATCH = 16
WAIT_MS = 10
_WARM_S = 3.0
_LONE_S = 2.0
Start = Callable[[Site], AbstractContextManager[ModelServer]]
STARTS: dict[str, Start] = {"torchserve": servers.torchserve, "penstock": servers.penstock}


@dataclass(frozen=True, slots=True)
class Work:
    """One archive and the request that it gets."""

    archive: str
    body: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class ServerTurn:
    """Under load from 64 callers, but for `lone_p50_ms`. CPU and memory are those of all processes of the server."""

    rps: float
    p50_ms: float
    p99_ms: float
    lone_p50_ms: float
    cpu_us: float
    memory_mib: float


def works() -> list[Work]:
    return [Work("noop", b"{}", "application/json"), Work("pictures", picture(), "image/png")]


def measure(folder: Path, *, rounds: int, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Both servers take their turns one after the other, so that a slow minute of the machine meets both."""
    found: dict[str, Any] = {}
    for work in works():
        turns: dict[str, list[ServerTurn]] = {name: [] for name in STARTS}
        for number, (name, start) in itertools.product(range(rounds), STARTS.items()):
            turns[name].append(take_turn(start, folder / f"{work.archive}-{name}-{number}", work, seconds))
            say(f"{work.archive} on {name}: {turns[name][-1]}")
        found[work.archive] = compared(turns)
    return found


def compared(turns: dict[str, list[ServerTurn]]) -> dict[str, Any]:
    """The median of each figure, and ours over theirs."""
    shown = {name: {key: _median(key, taken) for key in asdict(taken[0])} for name, taken in turns.items()}
    theirs, ours = shown["torchserve"], shown["penstock"]
    return {**shown, "ratio": {key: round(ours[key] / theirs[key], 3) for key in theirs}}


def _median(key: str, turns: list[ServerTurn]) -> float:
    found: list[float] = [getattr(turn, key) for turn in turns]
    return round(statistics.median(found), 2)


def take_turn(start: Start, folder: Path, work: Work, seconds: float) -> ServerTurn:
    folder.mkdir(parents=True)
    archive = next(archive for archive in ARCHIVES if archive.name == work.archive)
    version = {"defaultVersion": True, "marName": f"{archive.name}.mar", "minWorkers": 1, "maxWorkers": 1}
    batches = {"batchSize": BATCH, "maxBatchDelay": WAIT_MS, "responseTimeout": 120}
    models = json.dumps({archive.name: {archive.version: {**version, **batches}}})
    site = make_site(folder / "site", [archive], [f"models={models}", "job_queue_size=1000"])
    with start(site) as server:
        return _loaded(server, work, seconds)


def _loaded(server: ModelServer, work: Work, seconds: float) -> ServerTurn:
    target = parse_target(f"http://127.0.0.1:{server.site.inference}/predictions/{work.archive}")
    request = request_bytes(target, method="POST", body=work.body, headers={"Content-Type": work.media_type})
    plan = LoadSpec(target, itertools.repeat(request), CALLERS, _WARM_S)
    _good(run_load(plan))
    before = _cpu_s(server)
    busy = _good(run_load(replace(plan, duration_s=seconds)))
    spent_s, memory = _cpu_s(server) - before, sum(map(memory_of, server.processes()))
    lone = _good(run_load(replace(plan, connections=1, duration_s=_LONE_S)))
    found = busy.summary
    cpu_us = 1e6 * spent_s / found.count
    return ServerTurn(found.rps, found.p50_ms, found.p99_ms, lone.summary.p50_ms, cpu_us, memory / 2**20)


def _good(report: LoadReport) -> LoadReport:
    if report.summary.errors or not report.summary.count:
        raise PenstockError(f"answers other than 200: {report.summary.errors}; {report.bodies}")
    return report


def _cpu_s(server: ModelServer) -> float:
    return sum(map(process_cpu_s, server.processes()))
