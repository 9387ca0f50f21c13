"""One owner takes all that it can get of a gateway process, and another one works on as if it were alone (A40)."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.acceptance.gateway_process import Hand
from tests.acceptance.many_clients import Connection
from tests.eventually import eventually
from tests.security.keyed import keyed_gateway, make

MOST = 40
TURNS = 40
# Generous, since the machine is shared and the greedy owner does take a quarter of everything; it bounds what would be a queue.
SLOWER, SLACK_S = 20.0, 1.0
GREEDY = make("greedy", "submit", "read", owner="greedy")
GREEDY_TOO = make("greedy-too", "submit", "read", owner="greedy")
MODEST = make("modest", "submit", "read", owner="modest")
JSON, LINES = {"content-type": "application/json"}, {"accept": "application/x-ndjson"}
FORM = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
UPLOAD = {"content-type": "multipart/form-data; boundary=b", "content-length": "1000000"}


async def work(port: int) -> tuple[list[float], Counter[int]]:
    """What the modest owner does over and over: predictions, a job, looks at it, a wait. Returns how long each turn took."""
    connection, took, statuses = Connection(port), list[float](), Counter[int]()
    try:
        for _ in range(TURNS):
            began_at = time.monotonic()
            statuses.update(await turn(connection))
            took.append(time.monotonic() - began_at)
    finally:
        await connection.close()
    return took, statuses


async def turn(connection: Connection) -> list[int]:
    """The requests of one turn. Returns their statuses."""
    answers = [await connection.ask("POST", "/predictions/square", MODEST.header | JSON, b'{"x": 4}')]
    answers.append(await connection.ask("POST", "/predictions/square", MODEST.header | JSON | LINES, b'{"x": 4}'))
    assert b'"event":"end"' in answers[-1].body
    answers.append(await connection.ask("POST", "/v1/models/square/jobs", MODEST.header | JSON, b'{"x": 4}'))
    job = answers[-1].headers["location"]
    for path in (f"{job}/result?wait=20", job, f"/v1/jobs?ids={job.rpartition('/')[2]}"):
        answers.append(await connection.ask("GET", path, MODEST.header))
    return [answer.status for answer in answers]


class Greed:
    """Opens as many predictions, waits, slow uploads and slow bodies as it can, with two keys of one owner."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.refused: Counter[int] = Counter()
        self._is_full = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, job: str) -> None:
        asks: list[tuple[str, str, dict[str, str]]] = [
            ("POST", "/predictions/stuck?deadline_s=50", {"content-length": "8"}),
            ("POST", "/predictions/stuck?deadline_s=51", {"content-length": "8", "accept": "application/x-ndjson"}),
            ("GET", f"{job}?wait=30", {}),
            ("GET", f"{job}/events", {}),
            ("POST", "/v1/files", UPLOAD),
            ("POST", "/v1/models/square/jobs", {"content-length": "1000000"}),
            ("POST", "/v1/runs", {"content-length": "1000000"}),
        ]
        for number in range(MOST):
            key = (GREEDY, GREEDY_TOO)[number % 2]
            self._tasks += [asyncio.create_task(self._hold(*ask, key.header)) for ask in asks]
        await asyncio.wait_for(self._is_full.wait(), 60.0)

    async def _hold(self, method: str, path: str, headers: dict[str, str], key: dict[str, str]) -> None:
        """Send a request whose body never ends, or that is never answered soon, and hold on to the connection."""
        connection = Connection(self._port)
        body = FORM if "boundary" in headers.get("content-type", "") else b'{"x": 4}'
        try:
            answer = await connection.head_of(method, path, JSON | headers | key, body)
            if answer.status >= 400:
                self.refused[answer.status] += 1
            if self.refused.total() >= MOST:
                self._is_full.set()
            await asyncio.sleep(3600)
        except (OSError, asyncio.IncompleteReadError):
            self.refused[0] += 1
        finally:
            await connection.close()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_a_greedy_owner_takes_no_place_of_a_modest_one(redis_url: str, tmp_path: Path) -> None:
    """512 held predictions of one key were once answered at the cost of everybody else: 503 on every route."""
    limits: dict[str, Any] = dict.fromkeys(("max_requests", "max_predictions", "max_streams", "max_waits"), MOST)
    limits["body_timeout_s"] = 300
    square, stuck = Hand(redis_url), Hand(redis_url, "stuck")
    with keyed_gateway(redis_url, tmp_path, keys=(GREEDY, GREEDY_TOO, MODEST), **limits) as gateway, square.serving():
        for hand in (square, stuck):
            hand.announce()
        port = gateway.base_url.port or 0
        # Until the gateway has read the announcement, it knows no such model.
        job = eventually(
            lambda: gateway.post("/v1/models/stuck/jobs", json={"x": 4}, headers=GREEDY.header).headers.get("location")
        )
        alone, statuses = await work(port)
        assert set(statuses) == {200, 202}, statuses
        greed = Greed(port)
        await greed.begin(job)
        beside, statuses = await work(port)
        print(f"a turn alone: p99 {p99(alone) * 1e3:.0f} ms; beside a greedy owner: p99 {p99(beside) * 1e3:.0f} ms")
        assert set(statuses) == {200, 202}, statuses
        assert set(greed.refused) == {429}, "the greedy owner met its own bounds, not those of all"
        assert p99(beside) <= SLOWER * p99(alone) + SLACK_S
        await greed.end()
    for hand in (square, stuck):
        hand.store.close()


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]
