"""The asyncio client: the twin of `sync`, with the same names and the same rules (protocol, flows, retries)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from penstock.client import exchange, flows, protocol, rollouts, runs
from penstock.client.flows import Flow, Pause, Reply, T
from penstock.client.protocol import Answer, HttpCall
from penstock.client.retries import Retries, RetryBudget, RetryPolicy
from penstock.client.run_handle_aio import AsyncRunHandle
from penstock.client.runs import RunOptions
from penstock.client.timelines import TimelineView
from penstock.client.views import JobView, job_view
from penstock.errors import PenstockError
from penstock.job import Priority


class AsyncClient:
    """Talks to one gateway from one event loop. Close it with `aclose`, or use it as an async context manager.

    `base_url` falls back to PENSTOCK_URL, then to http://127.0.0.1:8080; `api_key` to PENSTOCK_API_KEY.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry: RetryPolicy | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._peer = exchange.peer(base_url, api_key, timeout_s)
        self._retries = Retries(retry or RetryPolicy(), RetryBudget())
        self._http = httpx2.AsyncClient(headers=exchange.user_agent(), transport=transport, limits=exchange.CONNECTIONS)

    @property
    def base_url(self) -> str:
        return self._peer.base_url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def submit(
        self,
        model: str,
        input: Any,
        *,
        version: str | None = None,
        content_type: str | None = None,
        priority: Priority | str | None = None,
        deadline_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJobHandle:
        """A handle on the stored job; once this returns, the job survives restarts. `input`: JSON value, bytes or a Path."""
        body = await asyncio.to_thread(protocol.body_of, input, content_type)
        call = protocol.submit_call(
            model, body, version=version, priority=priority, deadline_s=deadline_s, idempotency_key=idempotency_key
        )
        return AsyncJobHandle(self, protocol.job_of(await self.send(call)))

    async def predict(
        self,
        model: str,
        input: Any,
        *,
        version: str | None = None,
        content_type: str | None = None,
        deadline_s: float | None = None,
    ) -> Any:
        """The model's output, in one call that holds the line. Not sent again once it may have run."""
        body = await asyncio.to_thread(protocol.body_of, input, content_type)
        call = protocol.predict_call(model, body, version=version, deadline_s=deadline_s)
        return protocol.value_of(protocol.accepted(await self.send(call)))

    async def map(
        self,
        model: str,
        inputs: Iterable[Any] | AsyncIterable[Any],
        *,
        in_flight: int = 64,
        ordered: bool = True,
        version: str | None = None,
        content_type: str | None = None,
        priority: Priority | str | None = None,
        deadline_s: float | None = None,
    ) -> AsyncIterator[Any]:
        """The outputs, with at most `in_flight` jobs unfinished. Reads `inputs` only as fast as jobs end.

        The first job that does not succeed raises and ends the iteration; so does closing it. Open jobs are then cancelled.
        """
        protocol.check_window(in_flight)

        async def one(value: Any) -> Any:
            handle = await self.submit(
                model, value, version=version, content_type=content_type, priority=priority, deadline_s=deadline_s
            )
            return await _result_or_cancel(handle)

        window: list[asyncio.Task[Any]] = []
        try:
            async for value in _stream(inputs):
                if len(window) >= in_flight:
                    yield await _take(window, ordered=ordered)
                window.append(asyncio.create_task(one(value)))
            while window:
                yield await _take(window, ordered=ordered)
        finally:
            await _abandon(window)

    async def job(self, job_id: str) -> AsyncJobHandle:
        return AsyncJobHandle(self, protocol.job_of(await self.send(protocol.job_call(job_id))))

    async def timeline(self, job_id: str) -> TimelineView:
        """Where the time of a job went: stages that add up to its total, attempts, the batch it ended in."""
        return protocol.timeline_of(await self.send(protocol.timeline_call(job_id)))

    async def jobs(
        self, *, model: str | None = None, status: str | None = None, limit: int = 100
    ) -> AsyncIterator[AsyncJobHandle]:
        """Every job the gateway still knows, newest first; fetched in pages of `limit` as the iteration goes on."""
        after: str | None = ""
        while after is not None:
            answer = await self.send(protocol.page_call(model=model, status=status, after=after, limit=limit))
            for row in protocol.rows_of(answer):
                yield AsyncJobHandle(self, job_view(row))
            after = protocol.next_page(answer)

    async def models(self) -> list[dict[str, Any]]:
        return protocol.rows_of(await self.send(protocol.models_call()))

    async def model(self, name: str) -> dict[str, Any]:
        return protocol.object_of(await self.send(rollouts.model_call(name)))

    async def load_version(
        self, model: str, version: str, source: str, *, settings: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The model, with a further version that its workers begin to load from `source` below their `model_dir`."""
        return protocol.object_of(await self.send(rollouts.load_call(model, version, source, settings=settings or {})))

    async def switch_version(self, model: str, version: str) -> dict[str, Any]:
        """The model, whose callers get `version` from now on unless they name another. Raises `Conflict` unless it is ready."""
        return protocol.object_of(await self.send(rollouts.switch_call(model, version)))

    async def unload_version(self, model: str, version: str) -> dict[str, Any]:
        """The model without that version; what waits for it is still run."""
        return protocol.object_of(await self.send(rollouts.unload_call(model, version)))

    async def reset_model(self, model: str) -> dict[str, Any]:
        """The model as the settings say, every change at run time taken back; what waits for other versions is still run."""
        return protocol.object_of(await self.send(rollouts.reset_call(model)))

    async def ask_profile(self, model: str, *, version: str | None = None) -> dict[str, Any]:
        """The wish that each slot of the version records the next batch it is given; `profile` tells what came of it."""
        return protocol.object_of(await self.send(rollouts.ask_profile_call(model, version)))

    async def profile(self, model: str) -> dict[str, Any]:
        """The last wish, and per slot: armed, or done with the folder and the seconds per stage."""
        return protocol.object_of(await self.send(rollouts.profile_call(model)))

    async def workers(self) -> list[dict[str, Any]]:
        return protocol.rows_of(await self.send(protocol.workers_call()))

    async def run(
        self,
        model: str,
        inputs: Iterable[Any] | Path | str,
        *,
        options: RunOptions | None = None,
    ) -> AsyncRunHandle:
        """A run over many inputs: values, a local file, or the id of one uploaded before. Returns once it is stored.

        `async for result in run` waits for its end and gives one result per input, in order.
        """
        wanted = options or RunOptions()
        if isinstance(inputs, str):
            return await self._run(model, inputs, wanted, rows=None)
        if isinstance(inputs, Path):
            file_id = runs.file_of(await self.send(runs.upload_call(inputs)))
            return await self._run(model, file_id, wanted, rows=None)
        with contextlib.ExitStack() as held:
            file, count = await asyncio.to_thread(held.enter_context, runs.as_file(inputs))
            file_id = runs.file_of(await self.send(runs.upload_call(file)))
        columns = replace(wanted, columns={"": runs.ROW}, input_format="jsonl")
        return await self._run(model, file_id, columns, rows=count)

    async def run_handle(self, run_id: str) -> AsyncRunHandle:
        return AsyncRunHandle(self, runs.run_of(await self.send(runs.read_call(run_id))))

    async def _run(self, model: str, file_id: str, options: RunOptions, *, rows: int | None) -> AsyncRunHandle:
        view = runs.run_of(await self.send(runs.create_call(model, file_id, options)))
        return AsyncRunHandle(self, view, rows=rows, output_format=options.output_format)

    async def lines(self, link: str) -> AsyncIterator[str]:
        """The lines of a file of the gateway as they come, without holding it."""
        with self._peer.sending(HttpCall("GET", link)) as asked:
            async with self._http.stream(**asked) as response:
                if response.status_code >= 400:
                    await response.aread()
                protocol.accepted(exchange.head_of(response))
                async for line in response.aiter_lines():
                    yield line

    async def send(self, call: HttpCall) -> Answer:
        """The gateway's answer, good or bad, after the retries the call allows. Raises `GatewayUnreachable` for none at all."""
        return await self._retries.asynchronous(call)(self._exchange, call)

    async def follow(self, flow: Flow[T]) -> T:
        """What the flow comes to."""
        try:
            step = next(flow)
            while True:
                step = flow.send(await self._take(step))
        except StopIteration as end:
            value: T = end.value
            return value

    async def _take(self, step: HttpCall | Pause) -> Reply:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return Reply(flows.NOTHING, time.monotonic())
        answer = await self.send(step)
        return Reply(answer, time.monotonic())

    async def _exchange(self, call: HttpCall) -> Answer:
        try:
            with self._peer.sending(call) as asked:
                return exchange.answer_of(await self._http.request(**asked))
        except httpx2.TransportError as error:
            raise self._peer.fault(error) from error


class AsyncJobHandle:
    """One job of one client. `view` is the job as last seen; `wait`, `result`, `cancel` and `refresh` bring it up to date."""

    def __init__(self, client: AsyncClient, view: JobView) -> None:
        self._client = client
        self.view = view

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r}, {self.status!r})"

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def status(self) -> str:
        return self.view.status

    async def refresh(self) -> JobView:
        self.view = protocol.job_of(await self._client.send(protocol.poll_call(self.view)))
        return self.view

    async def wait(self, timeout_s: float | None = None) -> JobView:
        """The job at its end, however it ended. Raises `WaitTimeout` when `timeout_s` passes first."""
        self.view = await self._client.follow(flows.wait_flow(self.view, timeout_s=timeout_s, now=time.monotonic()))
        return self.view

    async def result(self, timeout_s: float | None = None) -> Any:
        """The output: decoded JSON, or bytes. Raises `JobFailed`, `JobCancelled`, `JobExpired`, `WaitTimeout`."""
        found = await self._client.follow(flows.result_flow(self.view, timeout_s=timeout_s, now=time.monotonic()))
        self.view = found.job
        return found.value

    async def timeline(self) -> TimelineView:
        return await self._client.timeline(self.id)

    async def cancel(self) -> JobView:
        """The job with the cancel noted: at once if it waits, at its batch's end if it runs. `Conflict` if it has ended."""
        self.view = protocol.job_of(await self._client.send(protocol.cancel_call(self.view)))
        return self.view

    async def replay(self, *, version: str | None = None, idempotency_key: str | None = None) -> AsyncJobHandle:
        """A new job with the input of this one, which brought no output; `Conflict` if that input is no longer stored."""
        call = protocol.replay_call(self.view, version=version, idempotency_key=idempotency_key)
        return AsyncJobHandle(self._client, protocol.job_of(await self._client.send(call)))


async def _stream(inputs: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(inputs, AsyncIterable):
        async for value in inputs:
            yield value
        return
    for value in inputs:
        yield value


async def _take(window: list[asyncio.Task[Any]], *, ordered: bool) -> Any:
    """The output of the oldest job, or of whichever ends first; it leaves the window."""
    if ordered:
        ended = window[0]
        await asyncio.wait({ended})
    else:
        done, _ = await asyncio.wait(window, return_when=asyncio.FIRST_COMPLETED)
        ended = next(task for task in window if task in done)
    window.remove(ended)
    return ended.result()


async def _result_or_cancel(handle: AsyncJobHandle) -> Any:
    try:
        return await handle.result()
    except asyncio.CancelledError:
        # Nobody waits for this one any more. One that has just ended, or a gateway that is gone, must not hide why we stop.
        with contextlib.suppress(PenstockError):
            await handle.cancel()
        raise


async def _abandon(window: list[asyncio.Task[Any]]) -> None:
    for task in window:
        task.cancel()
    await asyncio.gather(*window, return_exceptions=True)
