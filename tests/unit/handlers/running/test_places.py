"""Who gets a place when several wait for one."""

from __future__ import annotations

import asyncio

from penstock.handlers.running.places import Places


async def settle() -> None:
    """Let every task get as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Queue:
    """Tasks that each take a place, in order, and give it back when the test says so."""

    def __init__(self, count: int) -> None:
        self.places = Places(count)
        self.got: list[str] = []
        self.tasks: dict[str, asyncio.Task[bool]] = {}

    async def ask(self, *names: str) -> None:
        """Names that begin with `r` are of rows."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._take(name))
            await settle()

    async def _take(self, name: str) -> bool:
        has_waited = await self.places.take(is_row=name.startswith("r"))
        self.got.append(name)
        return has_waited

    async def free(self, *names: str) -> None:
        for name in names:
            self.places.give_back(is_row=name.startswith("r"))
            await settle()


def test_no_more_than_the_places_are_taken_and_the_first_that_waits_is_next() -> None:
    async def run() -> list[str]:
        queue = Queue(2)
        await queue.ask("a", "b", "c", "d")
        assert queue.got == ["a", "b"]
        await queue.free("a")
        assert queue.got == ["a", "b", "c"]
        await queue.free("b", "c")
        assert [task.result() for task in queue.tasks.values()] == [False, False, True, True]
        return queue.got

    assert asyncio.run(run()) == ["a", "b", "c", "d"]


def test_jobs_go_before_rows_but_rows_keep_one_place() -> None:
    async def run() -> list[str]:
        queue = Queue(2)
        await queue.ask("r1", "r2", "r3", "a", "b")
        # A row still has a place, so the job gets this one; the last place of the rows stays with them.
        await queue.free("r1")
        await queue.free("r2")
        return queue.got

    assert asyncio.run(run()) == ["r1", "r2", "a", "r3"]


def test_a_single_place_changes_hands_between_jobs_and_rows() -> None:
    async def run() -> list[str]:
        queue = Queue(1)
        await queue.ask("a", "b", "c", "r1", "r2")
        await queue.free("a", "r1", "b", "r2")
        return queue.got

    assert asyncio.run(run()) == ["a", "r1", "b", "r2", "c"]


def test_who_is_stopped_while_waiting_takes_no_place() -> None:
    async def run() -> list[str]:
        queue = Queue(1)
        await queue.ask("a", "b", "c")
        queue.tasks["b"].cancel()
        await settle()
        await queue.free("a")
        # The place is granted and taken back in one turn of the loop: it goes on to the next.
        await queue.ask("d")
        queue.places.give_back(is_row=False)
        queue.tasks["d"].cancel()
        await settle()
        await queue.ask("e")
        return queue.got

    assert asyncio.run(run()) == ["a", "c", "e"]
