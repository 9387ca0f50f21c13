"""The gateway's own connection for submits, tested on a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
import redis
import redis.asyncio
import uvloop

from penstock.broker.contract import CancelStatus
from penstock.broker.records import NewJob, SubmitStatus
from penstock.broker.store import notifications
from penstock.broker.store.aio import AsyncStore
from penstock.broker.store.connection import CallLink, connect_async
from penstock.job import Payload, new_job_id
from tests.eventually import eventually_async

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
    async def answer() -> object:
        sent = link.call(("PING",))
        return sent and await sent

    assert await eventually_async(answer) == b"PONG"


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


async def test_an_answer_that_does_not_come_in_time_breaks_the_link(fresh_redis: str) -> None:
    client = connect_async(fresh_redis, read_timeout_s=10 * WITHIN_S)
    link = CallLink(client.connection_pool, within_s=IMPATIENT_S)
    await stand(link)
    began_at = time.monotonic()
    waits = [called(link, "BLPOP", "nothing", 0), called(link, "PING")]
    for answer in waits:
        with pytest.raises(redis.TimeoutError):
            await answer
    # Without a limit of its own the link would wait for the client's limit, which is five minutes here.
    # A timer of the event loop may ring half a millisecond early.
    assert 0.9 * IMPATIENT_S <= time.monotonic() - began_at < 10 * WITHIN_S
    await stand(link)
    await link.close()
    await client.aclose()


async def test_an_event_loop_that_stood_still_does_not_blame_the_store(client: redis.asyncio.Redis) -> None:
    """A gateway that took in thousands of connections at once gave up every call of that moment as unanswered."""
    link = CallLink(client.connection_pool, within_s=IMPATIENT_S)
    await stand(link)
    answer = called(link, "PING")
    time.sleep(2 * IMPATIENT_S)  # noqa: ASYNC251 - it is what this test is about
    assert await answer == b"PONG"
    await link.close()


async def test_callers_wait_for_a_link_that_does_not_stand_yet(link: CallLink, client: redis.asyncio.Redis) -> None:
    before = {found["id"] for found in await client.client_list()}
    assert await asyncio.gather(*(link.answer(("PING",)) for _ in range(1000))) == [b"PONG"] * 1000
    assert len({found["id"] for found in await client.client_list()} - before) == 1


async def test_whoever_calls_a_store_that_is_away_hears_why() -> None:
    away = connect_async("redis://127.0.0.1:1")
    link = CallLink(away.connection_pool, within_s=WITHIN_S)
    answers = await asyncio.gather(*(link.answer(("PING",)) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, redis.ConnectionError) for answer in answers), answers
    await link.close()


async def test_whoever_gave_up_takes_nobody_elses_answer(link: CallLink) -> None:
    await stand(link)
    given_up, kept = called(link, "ECHO", "a"), called(link, "ECHO", "b")
    given_up.cancel()
    assert await kept == b"b"


def links(url: str) -> set[str]:
    """The connections of gateways, those of other tests' gateways included."""
    with redis.Redis.from_url(url) as other:
        return {client["id"] for client in other.client_list() if client["name"] == "penstock-gateway"}


async def test_thousands_read_wait_and_cancel_at_once_and_none_is_refused(fresh_redis: str) -> None:
    """The pool of redis-py refuses the 101st call of a moment: of 10,000 cancels 8,324 were answered 503."""
    before = links(fresh_redis)
    store = AsyncStore(fresh_redis)
    await store.start()
    try:
        jobs = [(await store.submit(NewJob(new_job_id("many"), "1", Payload("application/json", b"1")))).id for _ in range(100)]
        callers = [job for job in jobs for _ in range(30)]
        watched = await asyncio.gather(*(store.watch(job, every_change=True) for job in callers))
        assert [found.id for found in watched if found is not None] == callers
        read = await asyncio.gather(*(store.read(job) for job in callers), *(store.result(job) for job in callers))
        assert None not in read
        cancelled = await asyncio.gather(*(store.cancel(job) for job in callers))
        assert cancelled.count(CancelStatus.CANCELLED) == len(jobs)
        assert store.errors == 0
        assert len(links(fresh_redis) - before) == 2, "one link for submits, one for all other calls"
    finally:
        await store.close()


def function_loads(client: redis.Redis) -> int:
    """How often the server has loaded a library; other tests count too, and some reset the count."""
    return int(client.info("commandstats").get("cmdstat_function|load", {"calls": 0})["calls"])


async def test_of_many_who_miss_the_functions_one_loads_them(fresh_redis: str) -> None:
    store = AsyncStore(fresh_redis)
    await store.start()
    try:
        with redis.Redis.from_url(fresh_redis) as other:
            other.function_flush()
            before = function_loads(other)
            assert await asyncio.gather(*(store.read(new_job_id("none")) for _ in range(500))) == [None] * 500
            assert function_loads(other) == before + 1
    finally:
        await store.close()


async def test_a_waiter_learns_of_an_end_whose_push_was_lost(fresh_redis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway asks for all jobs that are waited for in one call, and reads only those that have ended."""
    monkeypatch.setattr(notifications, "RECHECK_S", 0.05)
    store = AsyncStore(fresh_redis)
    await store.start()
    try:
        kept, ended = [
            (await store.submit(NewJob(new_job_id("lost"), "1", Payload("application/json", b"1")))).id for _ in range(2)
        ]
        with store.waiter(kept) as waits, store.waiter(ended) as told:
            # Nobody watches these jobs, so no change of theirs is pushed.
            assert await store.cancel(ended) is CancelStatus.CANCELLED
            push = await told.next(20.0)
            assert push is not None
            assert push.id == ended
            assert await waits.next(0.2) is None
    finally:
        await store.close()


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
