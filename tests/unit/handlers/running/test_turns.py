"""Whose turn it is when several wait."""

from __future__ import annotations

import asyncio

from penstock.handlers.running.turns import ItemTurns


async def settle() -> None:
    """Let every task get as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Queue:
    """Tasks that begin in order, and end when the test says so."""

    def __init__(self, count: int) -> None:
        self.turns = ItemTurns(count)
        self.got: list[str] = []
        self.tasks: dict[str, asyncio.Task[bool]] = {}

    async def ask(self, *names: str) -> None:
        """Names that begin with `r` are of rows."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._take(name))
            await settle()

    async def _take(self, name: str) -> bool:
        has_waited = await self.turns.begin(is_row=name.startswith("r"))
        self.got.append(name)
        return has_waited

    async def free(self, *names: str) -> None:
        for name in names:
            self.turns.end(is_row=name.startswith("r"))
            await settle()


def test_no_more_run_at_once_and_the_first_that_waits_is_next() -> None:
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


def test_jobs_go_before_rows_but_one_row_always_runs() -> None:
    async def run() -> list[str]:
        queue = Queue(2)
        await queue.ask("r1", "r2", "r3", "a", "b")
        # A row still runs, so it is the job's turn; when the last row has ended, it is that of another row.
        await queue.free("r1")
        await queue.free("r2")
        return queue.got

    assert asyncio.run(run()) == ["r1", "r2", "a", "r3"]


def test_where_one_runs_at_a_time_jobs_and_rows_take_turns() -> None:
    async def run() -> list[str]:
        queue = Queue(1)
        await queue.ask("a", "b", "c", "r1", "r2")
        await queue.free("a", "r1", "b", "r2")
        return queue.got

    assert asyncio.run(run()) == ["a", "r1", "b", "r2", "c"]


def test_who_is_stopped_while_waiting_takes_no_turn() -> None:
    async def run() -> list[str]:
        queue = Queue(1)
        await queue.ask("a", "b", "c")
        queue.tasks["b"].cancel()
        await settle()
        await queue.free("a")
        # The item is let go and stopped in one turn of the loop: the next one goes.
        await queue.ask("d")
        queue.turns.end(is_row=False)
        queue.tasks["d"].cancel()
        await settle()
        await queue.ask("e")
        return queue.got

    assert asyncio.run(run()) == ["a", "c", "e"]
