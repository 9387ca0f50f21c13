"""The generator processes of one load, from the side that starts them: one schedule, shared by all, stopped together."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from penstock.errors import InternalError, PenstockError
from penstock.loadtest.assignment import (
    LENGTH_BYTES,
    Assignment,
    Begin,
    GeneratorFailure,
    LoadProgress,
    LoadTally,
    Merged,
    Word,
    frame,
    merged,
    word,
)

# From the word to begin until moment 0: time for each to read it and to connect.
LEAD_S = 0.15


class LoadNotSent(PenstockError):
    """The load could not be sent."""

    kind = "load_failed"


class Generators:
    """`told` is called with the sum of what all of them told, about once a second."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process], told: Callable[[LoadProgress], None]) -> None:
        self._processes = processes
        self._told = told
        self._latest = [LoadProgress() for _ in processes]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def ready(self, assignment: Assignment) -> None:
        """Each has its part and waits for the word to begin."""
        for number, process in enumerate(self._processes):
            assert process.stdin is not None
            process.stdin.write(frame(replace(assignment, number=number, of=len(self._processes))))
            await process.stdin.drain()
        for process in self._processes:
            await _word_of(process)

    async def run(self) -> Merged:
        """Begin, and wait until all have told their tally. Raises `LoadNotSent`."""
        starts_at = time.perf_counter() + LEAD_S
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(frame(Begin(starts_at)))
        return merged(await asyncio.gather(*(self._follow(number) for number in range(len(self._processes)))))

    def stop(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()

    async def _follow(self, number: int) -> LoadTally:
        while True:
            said = await _word_of(self._processes[number])
            if isinstance(said, LoadTally):
                return said
            if isinstance(said, GeneratorFailure):
                raise LoadNotSent(f"the load could not be sent: {said.message}", hint="is the server still there?")
            self._latest[number] = said
            if number == 0:
                self._told(_sum(self._latest))


def _sum(parts: Sequence[LoadProgress]) -> LoadProgress:
    return LoadProgress(
        sum(part.offered for part in parts),
        sum(part.good for part in parts),
        sum(part.bad for part in parts),
        max(part.lag_s for part in parts),
    )


async def _word_of(process: asyncio.subprocess.Process) -> Word:
    assert process.stdout is not None
    try:
        head = await process.stdout.readexactly(LENGTH_BYTES)
        return word(await process.stdout.readexactly(int.from_bytes(head, "big")))
    except asyncio.IncompleteReadError as ended:
        raise InternalError("a load generator ended without its tally; this is a bug") from ended


@asynccontextmanager
async def generators(count: int, told: Callable[[LoadProgress], None]) -> AsyncIterator[Generators]:
    """Started, and ended with the block."""
    command = [sys.executable, "-P", "-m", "penstock.loadtest.generator_process"]
    pipe = asyncio.subprocess.PIPE
    started: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(count):
            # A session of its own: Ctrl-C reaches this process alone, which then stops them in order.
            started.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True))
        yield Generators(started, told)
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.wait()
