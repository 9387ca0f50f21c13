"""`map` of the blocking client: it polls a window of unfinished jobs. `job_map_aio.py` does the same with asyncio's tasks."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.client import display, protocol
from penstock.client.problems import WaitTimeout
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client.handles.job_handle import JobHandle


def outputs(
    submit: Callable[[Any], JobHandle],
    inputs: Iterable[Any],
    *,
    in_flight: int,
    ordered: bool,
    progress: str = "",
) -> Iterator[Any]:
    """The outputs of one job per input, in the order of the inputs or as the jobs end. `progress`: the title of a bar."""
    with display.progress_bar(progress, shown=bool(progress)) as on_step:
        done, total = 0, display.total_of(inputs)
        with contextlib.closing(_outputs(submit, inputs, in_flight=in_flight, ordered=ordered)) as values:
            for value in values:
                done += 1
                on_step(done, total, "")
                yield value


def _outputs(
    submit: Callable[[Any], JobHandle],
    inputs: Iterable[Any],
    *,
    in_flight: int,
    ordered: bool,
) -> Generator[Any, None, None]:
    protocol.check_window(in_flight)
    window: deque[JobHandle] = deque()
    take = _take_oldest if ordered else _take_ended
    try:
        for value in inputs:
            if len(window) >= in_flight:
                yield take(window)
            window.append(submit(value))
        while window:
            yield take(window)
    finally:
        _abandon(window)


def _take_oldest(window: deque[JobHandle]) -> Any:
    """The output of the oldest job. The job leaves the window only once it has ended: until then `_abandon` must find it."""
    value = window[0].result()
    window.popleft()
    return value


def _take_ended(window: deque[JobHandle]) -> Any:
    """The output of a job that has ended. Each round waits up to a second for one job and only looks at the others."""
    longest_wait_s = 0.0
    while True:
        for turn in range(len(window)):
            with contextlib.suppress(WaitTimeout):
                value = window[0].result(timeout_s=longest_wait_s if turn == 0 else 0.0)
                window.popleft()
                return value
            window.rotate(-1)
        longest_wait_s = 1.0


def _abandon(window: Iterable[JobHandle]) -> None:
    for handle in window:
        # A job that has just ended, or a gateway that does not answer, must not hide why the iteration stops.
        with contextlib.suppress(PenstockError):
            handle.cancel()
