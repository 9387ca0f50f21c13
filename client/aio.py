"""The asyncio client. It makes the calls; `protocol` and `flows` read the answers. `sync.py` is generated from this file."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import httpx2

from penstock.client import calls, flows, protocol, runs
from penstock.client.calls import JobOptions, Moment
from penstock.client.handles import job_map_aio, stream_aio
from penstock.client.handles.at_once import MapPlan
from penstock.client.handles.job_handle_aio import AsyncJobHandle
from penstock.client.handles.keys_aio import AsyncKeys
from penstock.client.handles.operators_aio import AsyncFailedInbox, AsyncOperators
from penstock.client.handles.run_handle_aio import AsyncRunHandle
from penstock.client.handles.webhooks_aio import AsyncWebhooks
from penstock.client.job_events import OnRestart
from penstock.client.retries import RetryPolicy
from penstock.client.runs import CancelledRuns, RunOptions
from penstock.client.sender_aio import AsyncSender
from penstock.client.timelines import TimelineView
from penstock.client.views import CancelledJobs, job_view
from penstock.errors import BadRequest
from penstock.job import Priority


class AsyncClient(AsyncSender):
    """Talks to one gateway. Close it with `aclose`, or use it in an `async with` block. The tasks of one loop may share it.

    `base_url` falls back to PENSTOCK_URL, then to the `penstock up` of this folder, then to http://127.0.0.1:8080; `api_key`
    to PENSTOCK_API_KEY.
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
        super().__init__(base_url, api_key, timeout_s=timeout_s, retry=retry, transport=transport)
        self.webhooks, self.keys = AsyncWebhooks(self), AsyncKeys(self)
        self.operators, self.failed = AsyncOperators(self), AsyncFailedInbox(self)

    async def submit(
        self, model: str, input: Any, *, content_type: str | None = None, **options: Unpack[JobOptions]
    ) -> AsyncJobHandle:
        """Store a job and return its handle. A stored job survives restarts.

        `input`: a JSON value, bytes, a Path, or a dict with files (bytes, Paths, `penstock.File`s), which is sent as a form.
        `version`: None for the default one. `priority`: "interactive" or "bulk". The job must end within
        `deadline_s` seconds. A repeat with the same `idempotency_key` returns the first call's job.
        The job does not run before `delay_s` seconds have passed, or before the moment `not_before` (Unix seconds, or a
        datetime with its offset) by the store's clock. `tags`: up to 8 words for `jobs` and `cancel_tagged`.
        `webhook`: the URL that receives the job's end, or its `webhook_events` (docs/reference/webhooks.md).
        """
        body = await asyncio.to_thread(protocol.body_of, input, content_type)
        call = calls.submit_call(model, body, **options)
        return AsyncJobHandle(self, protocol.job_of(await self.send(call)))

    async def submit_many(self, model: str, inputs: Iterable[Any], **options: Unpack[JobOptions]) -> list[AsyncJobHandle]:
        """Store one job per input, in one request per thousand inputs; returns the handles in order. `inputs`: JSON values.

        If one input is invalid, none of its thousand is stored. A repeat with the same `idempotency_key` returns the first
        call's jobs. The other options are those of `submit`.
        """
        key, handles = options.get("idempotency_key") or uuid.uuid4().hex, []
        for number, rows in enumerate(calls.groups(map(protocol.row_of, inputs))):
            options["idempotency_key"] = f"{key}/{number}"
            call = calls.submit_many_call(model, rows, **options)
            handles += [AsyncJobHandle(self, job_view(row)) for row in protocol.rows_of(await self.send(call))]
        return handles

    async def as_completed(
        self, handles: Iterable[AsyncJobHandle], *, timeout_s: float | None = None
    ) -> AsyncIterator[AsyncJobHandle]:
        """The handles as their jobs end, with any final status. Of more than a hundred jobs, the oldest are watched first.

        Raises `WaitTimeout` when `timeout_s` passes before all have ended.
        """
        waiting = {handle.id: handle for handle in handles}
        began_at = time.monotonic()
        while waiting:
            now, views = time.monotonic(), [handle.view for handle in waiting.values()]
            left_s = None if timeout_s is None else max(0.0, timeout_s - (now - began_at))
            for view in await self.follow(flows.ended_flow(views, timeout_s=left_s, now=now)):
                handle = waiting.pop(view.id)
                handle.view = view
                yield handle

    async def wait_any(self, handles: Iterable[AsyncJobHandle], *, timeout_s: float | None = None) -> AsyncJobHandle:
        """The first handle whose job ends. Raises `WaitTimeout` when `timeout_s` passes first."""
        async for handle in self.as_completed(handles, timeout_s=timeout_s):
            return handle
        raise BadRequest("there is no job to wait for")

    async def predict(
        self,
        model: str,
        input: Any,
        *,
        version: str | None = None,
        content_type: str | None = None,
        deadline_s: float | None = None,
    ) -> Any:
        """The model's output, in one request that stays open until the model has run.

        The request is not retried once the model may have run.
        """
        body = await asyncio.to_thread(protocol.body_of, input, content_type)
        call = calls.predict_call(model, body, version=version, deadline_s=deadline_s)
        return protocol.value_of(protocol.accepted(await self.send(call)))

    async def stream(
        self,
        model: str,
        input: Any,
        *,
        version: str | None = None,
        content_type: str | None = None,
        deadline_s: float | None = None,
        on_restart: OnRestart | None = None,
    ) -> AsyncIterator[Any]:
        """The chunks that the model yields, as they come; of a model that does not yield, the output.

        If the job has to run again from its start, `on_restart` is called and all earlier chunks are void; without it the
        iteration raises `StreamRestarted`. Closing the iterator cancels the job. Raises `JobFailed`, `JobExpired`.
        """
        body = await asyncio.to_thread(protocol.body_of, input, content_type)
        call = calls.predict_call(model, body, version=version, deadline_s=deadline_s)
        async for chunk in stream_aio.chunks(self, stream_aio.predicted(self, call), on_restart):
            yield chunk

    def map(
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
        return_exceptions: bool = False,
        progress: bool = False,
    ) -> AsyncIterator[Any]:
        """The outputs, with at most `in_flight` jobs unfinished. Reads `inputs` only as fast as jobs end.

        The iteration raises at the first job that does not succeed; with `return_exceptions` it yields the job's error in
        the place of its output, and goes on. Unfinished jobs are cancelled when it raises, and when the iterator is closed.
        `progress`: show a bar, at a terminal or in a notebook.
        """
        options: JobOptions = {"version": version, "priority": priority, "deadline_s": deadline_s}
        plan = MapPlan(model, content_type, options, in_flight, ordered, keeps_errors=return_exceptions)
        return job_map_aio.outputs(self, inputs, plan, progress=progress)

    async def job(self, job_id: str) -> AsyncJobHandle:
        """A job by its id. Raises `NotFound`, `Gone`."""
        return AsyncJobHandle(self, protocol.job_of(await self.send(calls.job_call(job_id))))

    async def timeline(self, job_id: str) -> TimelineView:
        """The timeline of a job: stages that add up to the total time, attempts, and the batch in which the job ended."""
        return protocol.timeline_of(await self.send(calls.timeline_call(job_id)))

    async def traceback(self, job_id: str) -> str:
        """The traceback of the model's code in the job's last attempt. Raises `NotFound` unless the model keeps tracebacks."""
        return protocol.accepted(await self.send(calls.traceback_call(job_id))).content.decode()

    async def jobs(
        self,
        *,
        model: str | None = None,
        status: str | None = None,
        tag: str | None = None,
        limit: int = 100,
        ids: Iterable[str] | None = None,
    ) -> AsyncIterator[AsyncJobHandle]:
        """All stored jobs, newest first, fetched in pages of `limit` during the iteration.

        With `ids`: these jobs, in this order, a hundred per request; unknown jobs are left out.
        """
        for call in () if ids is None else calls.many_calls(ids):
            for row in protocol.rows_of(await self.send(call)):
                yield AsyncJobHandle(self, job_view(row))
        if ids is not None:
            return
        after: str | None = ""
        while after is not None:
            answer = await self.send(calls.page_call(model=model, status=status, tag=tag, after=after, limit=limit))
            for row in protocol.rows_of(answer):
                yield AsyncJobHandle(self, job_view(row))
            after = protocol.next_page(answer)

    async def cancel_tagged(self, tag: str, *, model: str | None = None) -> CancelledJobs:
        """Cancel all open jobs with this tag, in as many requests as needed."""
        return CancelledJobs(*await self.follow(flows.cancelled_flow(partial(calls.cancel_tagged_call, tag, model))))

    async def models(self) -> list[dict[str, Any]]:
        """One object per model, as `GET /v1/models` gives it."""
        return protocol.rows_of(await self.send(calls.models_call()))

    async def model(self, name: str) -> dict[str, Any]:
        """One model: its versions, schemas and limits. Raises `NotFound`."""
        return protocol.object_of(await self.send(calls.model_call(name)))

    async def load_version(
        self, model: str, version: str, source: str, *, settings: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Load another version from `source` below the workers' `model_dir`; returns the model, before the load is done."""
        return protocol.object_of(await self.send(calls.load_call(model, version, source, settings=settings or {})))

    async def switch_version(self, model: str, version: str) -> dict[str, Any]:
        """Make `version` the default one; returns the model. Raises `Conflict` unless the version is ready."""
        return protocol.object_of(await self.send(calls.switch_call(model, version)))

    async def unload_version(self, model: str, version: str) -> dict[str, Any]:
        """Unload a version; returns the model. Waiting jobs of the version still run."""
        return protocol.object_of(await self.send(calls.unload_call(model, version)))

    async def scale_model(self, model: str, slots: int | Literal["auto"], *, version: str | None = None) -> dict[str, Any]:
        """Set the `slots` of a version (without one: the default) in each worker process; returns the model.

        With 0 its jobs wait. With `"auto"` the settings, or the work, decide again. A removed slot finishes its batch.
        """
        return protocol.object_of(await self.send(calls.scale_call(model, slots, version)))

    async def unload_model(self, model: str) -> dict[str, Any]:
        """Stop new jobs for the model; waiting jobs still run. `rollout` shows what is left."""
        return protocol.object_of(await self.send(calls.unload_model_call(model)))

    async def rollout(self, model: str) -> dict[str, Any]:
        """The changes at run time: loaded versions, numbers of slots, and the state of each unloaded version.

        Raises `NotFound` once a model that no settings name is gone.
        """
        return protocol.object_of(await self.send(calls.rollout_call(model)))

    async def reset_model(self, model: str) -> dict[str, Any]:
        """Undo the rollout; returns the model as the settings declare it. Waiting jobs of other versions still run."""
        return protocol.object_of(await self.send(calls.reset_call(model)))

    async def split_model(
        self,
        model: str,
        weights: Mapping[str, float] | None = None,
        *,
        sticky: str = "",
        shadow: Mapping[str, Any] | None = None,
        canary: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Split requests that name no version, by `weights` in percent by version; returns the split.

        `sticky`: a header; requests with the same value get the same version. `shadow`: `version` and `share`. `canary`:
        `version`, and the other members of `PUT /v1/models/{model}/split`. Raises `InvalidInput`, `NotFound`, and `Conflict`
        for a version that is not ready.
        """
        return protocol.object_of(await self.send(calls.split_call(model, weights, sticky, shadow, canary)))

    async def split(self, model: str) -> dict[str, Any]:
        """The shares of the versions, the ends of their jobs, and the decisions. Raises `NotFound` without a split."""
        return protocol.object_of(await self.send(calls.split_view_call(model)))

    async def end_split(self, model: str) -> None:
        """End the split: requests that name no version get the default one. Raises `NotFound` without a split."""
        await self.send(calls.end_split_call(model))

    async def ask_profile(self, model: str, *, version: str | None = None) -> dict[str, Any]:
        """Ask each slot of the version to record its next batch; returns the request. `profile` shows the recordings."""
        return protocol.object_of(await self.send(calls.ask_profile_call(model, version)))

    async def profile(self, model: str) -> dict[str, Any]:
        """The last request, and the state of each slot: armed, or done with the folder and the seconds per stage."""
        return protocol.object_of(await self.send(calls.profile_call(model)))

    async def workers(self) -> list[dict[str, Any]]:
        """One object per live worker. The key needs the role `manage`."""
        return protocol.rows_of(await self.send(calls.workers_call()))

    async def history(
        self, model: str | None = None, *, range_s: int | None = None, since: Moment | None = None, until: Moment | None = None
    ) -> dict[str, Any]:
        """The recent history of a model, or of all together, in steps: lists by name, as in `GET /v1/history`.

        It covers the last `range_s` seconds (default: an hour), or the time since `since`; up to `until`, or now. Raises
        `NotFound`.
        """
        return protocol.object_of(await self.send(calls.history_call(model, range_s, since, until)))

    async def run(
        self,
        model: str,
        inputs: Iterable[Any] | os.PathLike[str] | str,
        *,
        options: RunOptions | None = None,
    ) -> AsyncRunHandle:
        """Start a run over many inputs: values, the path of a local file, or the id of an uploaded one. Returns when it is
        stored.

        Raises `BadRequest` for an unreadable file, and for bytes and Paths among the values, which cannot be rows.
        `async for result in run` waits for the end of the run and yields one result per input, in order.
        """
        wanted = options or RunOptions()
        if runs.is_file_id(inputs):
            return await self._run(model, inputs, wanted, rows=None)
        if isinstance(inputs, (str, os.PathLike)):
            file_id = runs.file_of(await self.send(runs.upload_call(Path(inputs))))
            return await self._run(model, file_id, wanted, rows=None)
        async with runs.as_file_aio(inputs) as (file, count):
            file_id = runs.file_of(await self.send(runs.upload_call(file)))
        columns = replace(wanted, columns={"": runs.ROW}, input_format="jsonl")
        return await self._run(model, file_id, columns, rows=count)

    async def run_handle(self, run_id: str) -> AsyncRunHandle:
        """A run by its id. Raises `NotFound`."""
        return AsyncRunHandle(self, runs.run_of(await self.send(runs.read_call(run_id))))

    async def runs(
        self, *, status: str | None = None, tag: str | None = None, limit: int = 100
    ) -> AsyncIterator[AsyncRunHandle]:
        """All stored runs, newest first, fetched in pages of `limit` during the iteration."""
        after: str | None = ""
        while after is not None:
            answer = await self.send(runs.page_call(status=status, tag=tag, after=after, limit=limit))
            for row in protocol.rows_of(answer):
                yield AsyncRunHandle(self, runs.run_view(row))
            after = protocol.next_page(answer)

    async def cancel_runs(self, tag: str) -> CancelledRuns:
        """Cancel all open runs with this tag, in as many requests as needed."""
        return CancelledRuns(*await self.follow(flows.cancelled_flow(partial(runs.cancel_tagged_call, tag))))

    async def _run(self, model: str, file_id: str, options: RunOptions, *, rows: int | None) -> AsyncRunHandle:
        view = runs.run_of(await self.send(runs.create_call(model, file_id, options)))
        return AsyncRunHandle(self, view, rows=rows, output_format=options.output_format)
