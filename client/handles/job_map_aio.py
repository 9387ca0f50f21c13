"""`map` of the asyncio client: one task per unfinished job. `job_map.py` does the same without tasks and is written by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from penstock.client import display, protocol
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.handles.job_handle_aio import AsyncJobHandle


async def outputs(
    submit: Callable[[Any], Awaitable[AsyncJobHandle]],
    inputs: Iterable[Any] | AsyncIterable[Any],
    *,
    in_flight: int,
    ordered: bool,
    progress: str = "",
) -> AsyncIterator[Any]:
    """The outputs of one job per input, in the order of the inputs or as the jobs end. `progress`: the title of a bar."""
    with display.progress_bar(progress, shown=bool(progress)) as on_step:
        done, total = 0, display.total_of(inputs)
        async with contextlib.aclosing(_outputs(submit, inputs, in_flight=in_flight, ordered=ordered)) as values:
            async for value in values:
                done += 1
                on_step(done, total, "")
                yield value


async def _outputs(
    submit: Callable[[Any], Awaitable[AsyncJobHandle]],
    inputs: Iterable[Any] | AsyncIterable[Any],
    *,
    in_flight: int,
    ordered: bool,
) -> AsyncGenerator[Any, None]:
    protocol.check_window(in_flight)
    window: list[asyncio.Task[Any]] = []
    try:
        async for value in _stream(inputs):
            if len(window) >= in_flight:
                yield await _take(window, ordered=ordered)
            window.append(asyncio.create_task(_run(submit, value)))
        while window:
            yield await _take(window, ordered=ordered)
    finally:
        await _abandon(window)


async def _stream(inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(inputs, AsyncIterable):
        async for value in inputs:
            yield value
        return
    for value in inputs:
        yield value


async def _run(submit: Callable[[Any], Awaitable[AsyncJobHandle]], value: Any) -> Any:
    """The output of a job of its own. A cancelled task cancels its job too."""
    handle = await submit(value)
    try:
        return await handle.result()
    except asyncio.CancelledError:
        # A job that has just ended, or a gateway that does not answer, must not hide why the iteration stops.
        with contextlib.suppress(PenstockError):
            await handle.cancel()
        raise


async def _take(window: list[asyncio.Task[Any]], *, ordered: bool) -> Any:
    """The output of the oldest job, or of the job that ends first. The job leaves the window."""
    if ordered:
        ended = window[0]
        await asyncio.wait({ended})
    else:
        done, _ = await asyncio.wait(window, return_when=asyncio.FIRST_COMPLETED)
        ended = next(task for task in window if task in done)
    window.remove(ended)
    return ended.result()


async def _abandon(window: list[asyncio.Task[Any]]) -> None:
    for task in window:
        task.cancel()
    await asyncio.gather(*window, return_exceptions=True)
