from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("grpc")

from penstock.gateway.auth.keys import EVERYBODY, Caller
from penstock.gateway.rpc.guard import MessagePermits, address_of

GREEDY, MODEST = Caller("greedy", key_id="a"), Caller("modest", key_id="b")


async def held(permits: MessagePermits, caller: Caller) -> asyncio.Task[None]:
    task = asyncio.create_task(permits.take(caller))
    await asyncio.sleep(0)
    return task


async def test_an_owner_has_half_of_the_places_and_the_rest_wait_in_turn() -> None:
    permits = MessagePermits(4)
    greedy = [await held(permits, GREEDY) for _ in range(4)]
    modest = [await held(permits, MODEST) for _ in range(3)]
    assert [task.done() for task in greedy + modest] == [True, True, False, False, True, True, False]
    permits.give_back(MODEST)
    await asyncio.sleep(0)
    # The greedy owner waits longer, and has its half already.
    assert [task.done() for task in greedy[2:] + modest] == [False, False, True, True, True]
    permits.give_back(GREEDY)
    await asyncio.sleep(0)
    assert [task.done() for task in greedy[2:]] == [True, False]
    greedy[3].cancel()
    await asyncio.gather(greedy[3], return_exceptions=True)
    for caller in (GREEDY, GREEDY, MODEST, MODEST):
        permits.give_back(caller)
    assert [(await held(permits, EVERYBODY)).done() for _ in range(5)] == [True, True, True, True, False]


async def test_a_caller_that_leaves_with_its_turn_gives_it_on() -> None:
    permits = MessagePermits(1)
    await permits.take(EVERYBODY)
    first, second = await held(permits, EVERYBODY), await held(permits, EVERYBODY)
    permits.give_back(EVERYBODY)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.sleep(0)
    assert second.done()


@pytest.mark.parametrize(
    ("peer", "address"),
    [("ipv4:127.0.0.1:50312", "127.0.0.1"), ("ipv6:%5B::1%5D:50312", "::1"), ("ipv6:[::1]:5", "::1"), ("unix:/a", "/a")],
)
def test_a_peer_has_an_address(peer: str, address: str) -> None:
    assert address_of(peer) == address
