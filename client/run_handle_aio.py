"""A run as the asyncio client sees it: the twin of `run_handle`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from penstock.client import runs
from penstock.client.problems import RunTimeout
from penstock.client.runs import OnProgress, RunView

if TYPE_CHECKING:
    from penstock.client.aio import AsyncClient


class AsyncRunHandle:
    """One run. Iterating waits for its end and gives one value per input: the output, or a `RowFailed`.

    `len()` is the number of rows; it is known at once for inputs that were given as an iterable.
    """

    def __init__(self, client: AsyncClient, view: RunView, *, rows: int | None = None, output_format: str = "jsonl") -> None:
        self._client = client
        self._rows = rows
        self._format = output_format
        self.view = view

    def __repr__(self) -> str:
        return f"AsyncRunHandle({self.id!r}, {self.status!r})"

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def status(self) -> str:
        return self.view.status

    def __len__(self) -> int:
        rows = self._rows if self._rows is not None else self.view.rows
        if rows is None:
            raise TypeError("how many rows the run has is not known yet; refresh() it")
        return rows

    async def refresh(self) -> RunView:
        self.view = runs.run_of(await self._client.send(runs.read_call(self.id)))
        return self.view

    async def wait(self, timeout_s: float | None = None, *, on_progress: OnProgress | None = None) -> RunView:
        """The run at its end, however it ended. Raises `RunTimeout` when `timeout_s` passes first."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not (await self.refresh()).final:
            if on_progress is not None:
                on_progress(self.view)
            if until is not None and time.monotonic() >= until:
                raise RunTimeout(f"run {self.id} has not ended yet", hint="it goes on; wait again")
            await asyncio.sleep(runs.POLL_S)
        if on_progress is not None:
            on_progress(self.view)
        return self.view

    async def cancel(self) -> RunView:
        """The run with the cancel noted; `Conflict` if it has ended."""
        self.view = runs.run_of(await self._client.send(runs.cancel_call(self.id)))
        return self.view

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Raises `RunEnded` for a run that was not completed."""
        runs.check_iterable(self._format)
        view = runs.completed(self.view if self.view.final else await self.wait())
        failures = self._client.lines(view.errors) if view.errors else _none()
        failed, rows = await _next(failures), runs.Rows()
        async for line in self._client.lines(view.output) if view.output else _none():
            value, used = rows.value(line, failed)
            failed = await _next(failures) if used else failed
            yield value


async def _next(lines: AsyncIterator[str]) -> runs.RowFailed | None:
    async for line in lines:
        return runs.failure(line)
    return None


async def _none() -> AsyncIterator[str]:
    nothing: tuple[str, ...] = ()
    for line in nothing:
        yield line
