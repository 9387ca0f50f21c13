"""One job as the client sees it: its state, its result, and its events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from penstock.client import calls, display, flows, job_events, protocol
from penstock.client.handles import stream_aio
from penstock.client.job_events import JobEvent, OnRestart
from penstock.client.timelines import TimelineView
from penstock.client.views import JobView

if TYPE_CHECKING:
    from penstock.client.aio import AsyncClient


class AsyncJobHandle:
    """One job of one client. `view`: the job as last seen; `wait`, `result`, `cancel` and `refresh` update it."""

    def __init__(self, client: AsyncClient, view: JobView) -> None:
        self._client = client
        self.view = view

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r}, {self.status!r})"

    def _repr_html_(self) -> str:
        return display.job_table(self.view)

    @property
    def id(self) -> str:
        """The job's id, which never changes."""
        return self.view.id

    @property
    def status(self) -> str:
        """As last seen: queued, running, succeeded, failed, cancelled or expired."""
        return self.view.status

    async def refresh(self) -> JobView:
        """Ask the gateway for the current state of the job."""
        self.view = protocol.job_of(await self._client.send(calls.poll_call(self.view)))
        return self.view

    async def wait(self, timeout_s: float | None = None, *, progress: bool = False) -> JobView:
        """Wait for the job's end, with any final status. Raises `WaitTimeout` when `timeout_s` passes first.

        `progress`: show a bar of the handler's progress, at a terminal or in a notebook.
        """
        if progress and display.is_watched():
            await self._show_progress(timeout_s)
        self.view = await self._client.follow(flows.wait_flow(self.view, timeout_s=timeout_s, now=time.monotonic()))
        return self.view

    async def _show_progress(self, timeout_s: float | None) -> None:
        """Move a bar until the job has ended or the time is over."""
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        with display.progress_bar(self.id, shown=True) as on_step:
            while ends_at is None or time.monotonic() < ends_at:
                seen = await self.refresh()
                display.job_step(seen, on_step)
                if seen.final:
                    return
                await asyncio.sleep(display.LOOK_EVERY_S)

    async def result(self, timeout_s: float | None = None) -> Any:
        """The output: decoded JSON, bytes or `Media`. Raises `JobFailed`, `JobCancelled`, `JobExpired`, `WaitTimeout`."""
        ended = await self._client.follow(flows.result_flow(self.view, timeout_s=timeout_s, now=time.monotonic()))
        self.view = ended.job
        return ended.value

    async def events(self, *, last_event_id: str = "") -> AsyncIterator[JobEvent]:
        """The events of the job up to its `end`, across lost connections: `status`, `progress`, `chunk`, `restart`.

        With the `id` of an event, it begins after that one. Raises `GatewayUnreachable` after several attempts without one.
        """
        async for event in stream_aio.events(self._client, self.id, last_event_id):
            self.view = job_events.seen(event) or self.view
            yield event

    async def stream(self, *, on_restart: OnRestart | None = None) -> AsyncIterator[Any]:
        """The chunks that the job yields; see `AsyncClient.stream`. Closing the iterator does not cancel the job."""
        async for chunk in stream_aio.chunks(self._client, self.events(), on_restart):
            yield chunk

    async def timeline(self) -> TimelineView:
        """Where its time went, in seconds by stage."""
        return await self._client.timeline(self.id)

    async def cancel(self) -> JobView:
        """Cancel the job: at once if it waits, at its batch's end if it runs. Raises `Conflict` if the job ended otherwise."""
        self.view = protocol.job_of(await self._client.send(calls.cancel_call(self.view)))
        return self.view

    async def replay(self, *, version: str | None = None, idempotency_key: str | None = None) -> AsyncJobHandle:
        """Submit a new job with the input of this one, which must have ended without an output.

        Raises `Conflict` if that input is no longer stored.
        """
        call = calls.replay_call(self.view, version=version, idempotency_key=idempotency_key)
        return AsyncJobHandle(self._client, protocol.job_of(await self._client.send(call)))
