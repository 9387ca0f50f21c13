"""The loops of the load generator against servers with known service times, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

from benchmarks.experiments.known_queue import KnownDevice, latencies, mean_latency_s
from penstock.loadtest.figures import spread
from penstock.loadtest.generator.arrivals import Stretch, along, unit_poisson
from penstock.loadtest.generator.closed_loop import ClosedLoop
from penstock.loadtest.generator.connection import HttpTarget
from penstock.loadtest.generator.load_loop import LoadWire, ResponseRecorder
from penstock.loadtest.generator.open_loop import OpenLoop
from tests.unit.loadtest.generator.virtual_time import Server, run_virtually, virtual_alarm

TARGET = HttpTarget("h", 80, "/")


def requests() -> itertools.repeat[bytes]:
    return itertools.repeat(b"GET / HTTP/1.1\r\n\r\n")


def arrivals(rate: float, seconds: float, seed: int = 1) -> list[float]:
    return list(along([Stretch(rate, rate, seconds)], unit_poisson(seed)))


def opened(server: Server, due: list[float], seconds: float, *, connections: int = 4, most: int = 400) -> OpenLoop:
    """Runs an open loop to its end."""
    found: list[OpenLoop] = []

    async def work() -> None:
        wire = LoadWire(TARGET, clock=asyncio.get_running_loop().time, dial=server.dial, alarm=virtual_alarm)
        loop = OpenLoop(wire, requests(), iter(due), ResponseRecorder())
        await loop.run(connections, seconds, drain_s=60.0, most=most)
        found.append(loop)

    run_virtually(work())
    return found[0]


def measured(loop: OpenLoop) -> list[float]:
    """Latencies in the order in which the calls were meant to leave."""
    samples = loop.recorder.samples
    calls = zip(samples.answered_at, samples.latencies_s, strict=True)
    return [took for _, took in sorted((at - took, took) for at, took in calls)]


@pytest.mark.parametrize(
    ("device", "rate"),
    [(KnownDevice(0.02), 25.0), (KnownDevice(0.02), 35.0), (KnownDevice(0.02, 0.002, 8), 150.0)],
    ids=["rho .5", "rho .7", "batches"],
)
def test_latencies_against_a_known_server_are_within_3_percent_at_every_percentile(device: KnownDevice, rate: float) -> None:
    due = arrivals(rate, 120.0)
    loop = opened(Server(device), due, 120.0)
    found, known = spread(measured(loop)), spread(latencies(device, due))
    assert (loop.offered, loop.unfinished, loop.starved) == (len(due), 0, 0)
    assert found is not None
    assert known is not None
    for name in ("mean_ms", "p50_ms", "p90_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms"):
        assert getattr(found, name) == pytest.approx(getattr(known, name), rel=0.03), name


@pytest.mark.parametrize("rho", [0.5, 0.7])
def test_the_mean_is_that_of_the_theory_of_queues(rho: float) -> None:
    """The Pollaczek-Khinchine mean, with enough calls for chance to stay within the bound."""
    rate, service_s = rho / 0.02, 0.02
    due = arrivals(rate, 100_000 / rate, seed=3)
    found = latencies(KnownDevice(service_s), due)
    assert math.fsum(found) / len(found) == pytest.approx(mean_latency_s(rate, service_s), rel=0.02)
    # A share of 1 - rho of the calls finds the server idle and does not wait.
    assert sum(took < service_s * 1.000001 for took in found) / len(found) == pytest.approx(1.0 - rho, rel=0.02)


def test_a_stall_is_charged_to_everyone_who_would_have_come_meanwhile() -> None:
    """Coordinated omission: in a closed loop, one call would have seen the second of silence; here a hundred calls do."""
    due = [number / 100.0 for number in range(1, 500)]
    loop = opened(Server(KnownDevice(0.001), stalls=(2.0, 3.0)), due, 5.0)
    by_due = dict(zip(due, measured(loop), strict=True))
    held = {at: took for at, took in by_due.items() if 2.0 <= at < 3.0}
    assert len(held) == 100
    assert all(took >= 3.0 - at for at, took in held.items())
    assert max(took for at, took in by_due.items() if at < 2.0) < 0.005


def test_connections_are_added_as_they_are_needed_and_no_more_than_allowed() -> None:
    few, many = (Server(KnownDevice(0.5, most=64)) for _ in range(2))
    due = arrivals(100.0, 5.0)
    assert opened(few, due, 5.0, connections=2, most=2).starved > 100
    assert few.connections == 2
    assert opened(many, due, 5.0, connections=2, most=400).starved == 0
    assert 50 < many.connections <= 200


def test_stopping_an_open_loop_keeps_what_was_answered() -> None:
    async def work() -> None:
        clock = asyncio.get_running_loop().time
        loop = OpenLoop(
            LoadWire(TARGET, clock=clock, dial=Server(KnownDevice(0.01)).dial, alarm=virtual_alarm),
            requests(),
            iter(arrivals(50.0, 60.0)),
            ResponseRecorder(),
        )
        asyncio.get_running_loop().call_later(10.0, loop.stop, 1.0)
        await loop.run(4, 60.0, drain_s=30.0, most=50)
        assert 10.0 <= clock() <= 11.0
        assert 400 < loop.offered < 600
        assert len(loop.recorder.samples.statuses) + loop.unfinished == loop.offered

    run_virtually(work())


def test_a_closed_loop_keeps_its_number_of_calls_under_way() -> None:
    async def work() -> None:
        clock = asyncio.get_running_loop().time
        server = Server(KnownDevice(0.1, most=4))
        loop = ClosedLoop(LoadWire(TARGET, clock=clock, dial=server.dial, alarm=virtual_alarm), requests(), ResponseRecorder())
        await loop.run(4, 10.05, drain_s=1.0)
        # The first call finds the device idle and runs alone; the other three wait and run together, and so on.
        assert loop.offered == pytest.approx(4 * 10.05 / 0.2, abs=4)
        assert (server.connections, loop.unfinished) == (4, 0)

    run_virtually(work())


def test_what_follows_belongs_to_the_same_call() -> None:
    async def work() -> None:
        asked: list[int] = []

        def follow(connection: object) -> bytes | None:
            asked.append(1)
            return b"GET /again HTTP/1.1\r\n\r\n" if len(asked) % 3 else None

        wire = LoadWire(TARGET, follow, clock=asyncio.get_running_loop().time, dial=Server(KnownDevice(0.1)).dial)
        loop = ClosedLoop(wire, iter([b"GET / HTTP/1.1\r\n\r\n"] * 5), ResponseRecorder())
        await loop.run(1, 60.0, drain_s=1.0)
        assert loop.recorder.samples.latencies_s.tolist() == pytest.approx([0.3] * 5)

    run_virtually(work())
