from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("grpc")

from penstock.gateway.rpc.streams import AnswerLine


async def fill(line: AnswerLine, count: int) -> None:
    for number in range(count):
        await line.put(b"%d" % number)
    await line.put(None)


async def test_answers_wait_for_a_slow_client_and_come_in_order() -> None:
    line = AnswerLine()
    filling = asyncio.create_task(fill(line, 20))
    for _ in range(40):
        await asyncio.sleep(0)
    assert not filling.done()
    found = []
    while (answer := await line.get()) is not None:
        found.append(answer)
    assert found == [b"%d" % number for number in range(20)]


async def test_nobody_waits_for_a_client_that_has_gone() -> None:
    line = AnswerLine()
    filling = asyncio.create_task(fill(line, 20))
    await asyncio.sleep(0)
    line.leave_unread()
    await asyncio.wait_for(filling, 5.0)
