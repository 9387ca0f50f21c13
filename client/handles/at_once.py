"""The parts of `map` that its two clients share, or that differ by nature: calls at once, and how inputs are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.client import calls
from penstock.client.calls import JobOptions
from penstock.errors import PenstockError

T = TypeVar("T")
_THREADS = 16


@dataclass(frozen=True, slots=True)
class MapPlan:
    """At most `in_flight` jobs are unfinished or have an output that nobody has read. `keeps_errors`: the error of a job is
    its output, instead of the end of the iteration.
    """

    model: str
    content_type: str | None
    options: JobOptions
    in_flight: int
    ordered: bool
    keeps_errors: bool

    @property
    def group(self) -> int:
        """How many inputs are submitted in one request: half of those in flight, so that the model has others meanwhile."""
        return max(1, self.in_flight // 2)

    @property
    def watched(self) -> int:
        """How many jobs are asked for together. The outputs are yielded in order, so the oldest are enough, and cost less."""
        return self.group if self.ordered else calls.MANY_IDS


def gathered(wanted: Sequence[Callable[[], T]]) -> list[T | PenstockError]:
    """What each call returns or raises, in order; the calls run in threads."""

    def outcome(call: Callable[[], T]) -> T | PenstockError:
        try:
            return call()
        except PenstockError as error:
            return error

    if len(wanted) < 2:
        return [outcome(call) for call in wanted]
    with ThreadPoolExecutor(min(_THREADS, len(wanted))) as threads:
        return list(threads.map(outcome, wanted))


async def gathered_aio(wanted: Sequence[Callable[[], Awaitable[T]]]) -> list[T | PenstockError]:
    """What each call returns or raises, in order."""

    async def outcome(call: Callable[[], Awaitable[T]]) -> T | PenstockError:
        try:
            return await call()
        except PenstockError as error:
            return error

    return await asyncio.gather(*map(outcome, wanted))


def opened(inputs: Iterable[Any]) -> Iterator[Any]:
    return iter(inputs)


async def opened_aio(inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(inputs, AsyncIterable):
        async for value in inputs:
            yield value
        return
    for value in inputs:
        yield value
