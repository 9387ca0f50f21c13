"""Many clients wait at one gateway process with one key, and poll and cancel beside it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from redis import Redis

from tests.acceptance.gateway_process import GatewayClient
from tests.acceptance.many_clients import Answer, Connection, allow_connections
from tests.eventually import eventually_async
from tests.security.keyed import BOSS, TestKey, keyed_gateway, make

# More than the 512 requests that one owner may have open at once if they do not wait, and than one owner's share of anything.
WAITING = 600
POLLERS = 50
JOBS = 20
# A key as `penstock keys new` makes one: nothing is set but its roles.
BACKEND = make("backend", "submit", "read", more="")


@pytest.fixture(scope="module")
def gateway(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayClient]:
    with keyed_gateway(redis_url, tmp_path_factory.mktemp("gateway"), keys=(BACKEND, BOSS)) as client:
        yield client


async def ask(connection: Connection, method: str, path: str, key: TestKey) -> Answer:
    """The answer; asks again while the key's rate is spent, as the clients do. A 503 is never asked again."""

    async def is_within_rate() -> Answer | None:
        answer = await connection.ask(method, path, key.header)
        return answer if answer.status != 429 else None

    return await eventually_async(is_within_rate, timeout_s=60.0)


async def wait_for_end(connection: Connection, path: str, key: TestKey) -> Answer:
    """Waits as a client does: a long poll that has ended without an end is sent again."""
    while True:
        answer = await ask(connection, "GET", path, key)
        if answer.status != 200 or b"cancelled" in answer.body:
            return answer


async def test_hundreds_wait_with_one_key_and_others_poll_and_cancel_without_a_503(gateway: GatewayClient) -> None:
    """Of 1,000 readers of events and 1,000 pollers 5,419 requests were answered 503, and of 10,000 cancels 8,324."""
    allow_connections(WAITING + POLLERS)
    jobs = [gateway.post("/v1/models/square/jobs", json={"x": 4}, headers=BACKEND.header).json()["id"] for _ in range(JOBS)]
    port = gateway.base_url.port or 0
    waiting = [Connection(port) for _ in range(WAITING)]
    pollers = [Connection(port) for _ in range(POLLERS)]
    paths = [f"/v1/jobs/{jobs[n % JOBS]}" + ("/events" if n % 2 else "?wait=30") for n in range(WAITING)]
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(wait_for_end(client, path, BACKEND)) for client, path in zip(waiting, paths, strict=True)]
        await all_wait(gateway, WAITING)
        for _ in range(4):
            polls = await asyncio.gather(*(ask(poller, "GET", f"/v1/jobs/{jobs[0]}", BOSS) for poller in pollers))
            assert {answer.status for answer in polls} == {200}
        assert not any(wait.done() for wait in waits), "nothing has changed"
        cancels = await asyncio.gather(
            *(ask(poller, "DELETE", f"/v1/jobs/{jobs[n % JOBS]}", BOSS) for n, poller in enumerate(pollers))
        )
        assert {answer.status for answer in cancels} == {202}
    ends = Counter(wait.result().status for wait in waits)
    assert ends == {200: WAITING}
    assert all(b"event: end" in wait.result().body for wait in waits[1::2])
    for connection in waiting + pollers:
        await connection.close()


async def all_wait(gateway: GatewayClient, count: int) -> None:
    """Return once `count` requests are open at the gateway."""

    async def are_open() -> bool:
        text = (await asyncio.to_thread(gateway.get, "/metrics", headers=BOSS.header)).text
        open_now = [line for line in text.splitlines() if line.startswith("penstock_http_requests_in_flight")]
        return bool(open_now) and float(open_now[0].split()[1]) >= count

    await eventually_async(are_open, timeout_s=60.0)


async def test_probes_from_everywhere_are_answered_from_one_look_per_half_second(
    gateway: GatewayClient, redis_url: str
) -> None:
    """Every call once did a durable write: 128 callers without a key slowed 20 ms predictions down to 1.8 s."""
    with Redis.from_url(redis_url) as redis:
        connections = [Connection(gateway.base_url.port or 0) for _ in range(32)]
        before, loop = writes(redis), asyncio.get_running_loop()
        began_at = loop.time()
        for _ in range(4):
            for path in ("/readyz", "/ping", "/v2/health/ready"):
                answers = await asyncio.gather(*(connection.ask("GET", path) for connection in connections))
                assert {answer.status for answer in answers} <= {200, 500, 503}
        spent_s = loop.time() - began_at
        # Other gateways of the session are not probed meanwhile.
        assert writes(redis) - before <= spent_s / 0.5 + 2
        for connection in connections:
            await connection.close()


def writes(redis: Redis) -> int:
    stats = redis.info("commandstats")
    return int(stats.get("cmdstat_set", {"calls": 0})["calls"])
