"""Starts the generator processes of one load, which share a schedule and stop together."""

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
    GeneratorMessage,
    LoadProgress,
    LoadTally,
    MergedTally,
    decode_message,
    encode_frame,
    merged_tally,
)

# From `Begin` to moment 0 of the schedule: time for each generator to read the message and to connect.
LEAD_S = 0.15


class LoadNotSent(PenstockError):
    """The load could not be sent."""

    kind = "load_failed"


class Generators:
    """`on_progress` is called about once a second with the sum over all generators."""

    def __init__(self, processes: Sequence[asyncio.subprocess.Process], on_progress: Callable[[LoadProgress], None]) -> None:
        self._processes = processes
        self._on_progress = on_progress
        self._latest = [LoadProgress() for _ in processes]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def prepare(self, assignment: Assignment) -> None:
        """Returns when every generator has its part and waits for `Begin`."""
        for number, process in enumerate(self._processes):
            assert process.stdin is not None
            process.stdin.write(encode_frame(replace(assignment, number=number, of=len(self._processes))))
            await process.stdin.drain()
        for process in self._processes:
            await _next_message(process)

    async def run(self) -> MergedTally:
        """Sends the load and returns the tally of all generators. Raises `LoadNotSent`."""
        starts_at = time.perf_counter() + LEAD_S
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(encode_frame(Begin(starts_at)))
        return merged_tally(await asyncio.gather(*(self._follow(number) for number in range(len(self._processes)))))

    def stop(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()

    async def _follow(self, number: int) -> LoadTally:
        while True:
            message = await _next_message(self._processes[number])
            if isinstance(message, LoadTally):
                return message
            if isinstance(message, GeneratorFailure):
                raise LoadNotSent(f"the load could not be sent: {message.message}", hint="is the server still running?")
            self._latest[number] = message
            if number == 0:
                self._on_progress(_sum(self._latest))


def _sum(parts: Sequence[LoadProgress]) -> LoadProgress:
    return LoadProgress(
        sum(part.offered for part in parts),
        sum(part.good for part in parts),
        sum(part.bad for part in parts),
        max(part.lag_s for part in parts),
    )


async def _next_message(process: asyncio.subprocess.Process) -> GeneratorMessage:
    assert process.stdout is not None
    try:
        head = await process.stdout.readexactly(LENGTH_BYTES)
        return decode_message(await process.stdout.readexactly(int.from_bytes(head, "big")))
    except asyncio.IncompleteReadError as ended:
        raise InternalError("a load generator ended without its tally; this is a bug") from ended


@asynccontextmanager
async def started_generators(count: int, on_progress: Callable[[LoadProgress], None]) -> AsyncIterator[Generators]:
    """Generator processes that run until the block ends."""
    command = [sys.executable, "-P", "-m", "penstock.loadtest.generator_process"]
    pipe = asyncio.subprocess.PIPE
    started: list[asyncio.subprocess.Process] = []
    try:
        for _ in range(count):
            # In a new session, so that Ctrl-C reaches only this process, which then stops the generators in order.
            started.append(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True))
        yield Generators(started, on_progress)
    finally:
        for process in started:
            if process.returncode is None:
                process.kill()
            await process.wait()
