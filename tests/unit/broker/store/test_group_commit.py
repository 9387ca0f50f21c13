"""When a group of items is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from penstock.broker.store.group_commit import MAX_CALLS, GroupCommit

EARLY = 3


class Sink:
    """Answers each item with the item itself once `let` is set."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.let = asyncio.Event()
        self.refuse: Exception | None = None

    def send(self, items: Sequence[int]) -> Awaitable[list[int]]:
        if self.refuse is not None:
            raise self.refuse
        self.groups.append(list(items))
        return self._answer(list(items))

    async def _answer(self, items: list[int]) -> list[int]:
        await self.let.wait()
        return items

    def commits(self) -> GroupCommit[int, int]:
        return GroupCommit(self.send, size_of=lambda item: 1, early=EARLY)


def begin(commits: GroupCommit[int, int], items: Sequence[int]) -> list[asyncio.Task[int]]:
    return [asyncio.ensure_future(commits.commit(item)) for item in items]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_items_of_one_turn_share_a_call() -> None:
    sink = Sink()
    tasks = begin(sink.commits(), [1, 2])
    await turns(3)
    assert sink.groups == [[1, 2]]
    sink.let.set()
    assert await asyncio.gather(*tasks) == [1, 2]


async def test_a_full_group_leaves_while_the_turn_goes_on() -> None:
    sink = Sink()
    seen: list[int] = []
    commits = sink.commits()
    tasks = begin(commits, range(EARLY))
    asyncio.get_running_loop().call_soon(lambda: seen.append(len(sink.groups)))
    tasks += begin(commits, [EARLY])
    await turns(3)
    assert seen == [1], "what came behind the full group in the same turn saw it gone"
    assert sink.groups == [[0, 1, 2], [3]]
    sink.let.set()
    assert await asyncio.gather(*tasks) == [0, 1, 2, 3]


async def test_calls_under_way_are_bounded_and_the_rest_gathers_behind_them() -> None:
    sink = Sink()
    tasks = begin(sink.commits(), range(EARLY * (MAX_CALLS + 2)))
    await turns(5)
    assert len(sink.groups) == MAX_CALLS
    sink.let.set()
    assert await asyncio.gather(*tasks) == list(range(EARLY * (MAX_CALLS + 2)))
    assert sink.groups[MAX_CALLS:] == [list(range(EARLY * MAX_CALLS, EARLY * (MAX_CALLS + 2)))]


async def test_a_call_that_cannot_be_made_fails_its_items_and_no_others() -> None:
    sink = Sink()
    sink.refuse = ValueError("no")
    commits = sink.commits()
    failed = begin(commits, range(EARLY))
    await turns(3)
    sink.refuse = None
    sink.let.set()
    assert await commits.commit(7) == 7
    for task in failed:
        with pytest.raises(ValueError, match="no"):
            await task
