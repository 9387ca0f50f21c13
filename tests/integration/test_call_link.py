"""The gateway's own connection for submits, tested on a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
import redis
import redis.asyncio
import uvloop

from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.connection import CallLink, connect_async
from penstock.job import Payload, new_job_id

# WITHIN_S is longer than any pause of a busy machine; a test that waits for the limit uses IMPATIENT_S.
WITHIN_S = 30.0
IMPATIENT_S = 0.3


@pytest.fixture
async def client(fresh_redis: str) -> AsyncIterator[redis.asyncio.Redis]:
    client = connect_async(fresh_redis, name="link-test")
    yield client
    await client.aclose()


@pytest.fixture
async def link(client: redis.asyncio.Redis) -> AsyncIterator[CallLink]:
    link = CallLink(client.connection_pool, within_s=WITHIN_S)
    yield link
    await link.close()


async def stand(link: CallLink) -> None:
    give_up_at = time.monotonic() + 30.0
    while (answer := link.call(("PING",))) is None:
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.005)
    assert await answer == b"PONG"


def called(link: CallLink, *command: bytes | str | int) -> asyncio.Future[object]:
    answer = link.call(command)
    assert answer is not None
    return answer


async def test_calls_of_one_turn_are_answered_in_order_and_a_refusal_reaches_its_caller_alone(link: CallLink) -> None:
    assert link.call(("PING",)) is None, "it does not stand yet"
    await stand(link)
    answers = [called(link, "INCR", "n"), called(link, "LPUSH", "n", "x"), called(link, "INCR", "n")]
    assert await answers[0] == 1
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await answers[1]
    assert await answers[2] == 2


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_call_runs_before_the_event_loop_goes_on(fresh_redis: str, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def call() -> None:
        client = connect_async(fresh_redis)
        link = CallLink(client.connection_pool, within_s=WITHIN_S)
        await stand(link)
        answer = called(link, "SET", "written", "1")
        # Without an await in between, no other code of this process runs meanwhile.
        with redis.Redis.from_url(fresh_redis) as other:
            assert other.get("written") == b"1"
        assert await answer == b"OK"
        await link.close()
        await client.aclose()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(call())


async def test_a_lost_connection_fails_those_who_wait_and_comes_back_with_the_next_call(
    link: CallLink, client: redis.asyncio.Redis
) -> None:
    await stand(link)
    waits = called(link, "BLPOP", "nothing", 0)
    await client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(redis.ConnectionError):
        await waits
    await stand(link)


async def test_an_answer_that_does_not_come_in_time_breaks_the_link(client: redis.asyncio.Redis) -> None:
    link = CallLink(client.connection_pool, within_s=IMPATIENT_S)
    await stand(link)
    began_at = time.monotonic()
    waits = [called(link, "BLPOP", "nothing", 0), called(link, "PING")]
    for answer in waits:
        with pytest.raises(redis.TimeoutError):
            await answer
    # Without a limit of its own the link would wait for the client's limit, which is five seconds.
    assert IMPATIENT_S <= time.monotonic() - began_at < 4.0
    await stand(link)
    await link.close()


async def test_whoever_gave_up_takes_nobody_elses_answer(link: CallLink) -> None:
    await stand(link)
    given_up, kept = called(link, "ECHO", "a"), called(link, "ECHO", "b")
    given_up.cancel()
    assert await kept == b"b"


async def test_a_store_whose_server_lost_the_functions_loads_them_and_submits(fresh_redis: str) -> None:
    store = AsyncStore(fresh_redis)
    await store.start()
    try:
        for _ in range(3):
            with redis.Redis.from_url(fresh_redis) as other:
                other.function_flush()
            job = NewJob(new_job_id("linked"), "1", Payload("application/json", b"1"))
            assert (await store.submit(job)).status is SubmitStatus.CREATED
    finally:
        await store.close()
