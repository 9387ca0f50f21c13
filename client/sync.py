"""The blocking client. What it says and decides is in protocol, flows and retries; this file sends and sleeps."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from penstock.client import exchange, flows, protocol, rollouts, runs
from penstock.client.flows import Flow, Pause, Reply, T
from penstock.client.problems import WaitTimeout
from penstock.client.protocol import Answer, HttpCall
from penstock.client.retries import Retries, RetryBudget, RetryPolicy
from penstock.client.run_handle import RunHandle
from penstock.client.runs import RunOptions
from penstock.client.timelines import TimelineView
from penstock.client.views import JobView, job_view
from penstock.errors import PenstockError
from penstock.job import Priority


class Client:
    """Talks to one gateway. Close it, or use it as a context manager; threads may share one.

    `base_url` falls back to PENSTOCK_URL, then to http://127.0.0.1:8080; `api_key` to PENSTOCK_API_KEY.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry: RetryPolicy | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._peer = exchange.peer(base_url, api_key, timeout_s)
        self._retries = Retries(retry or RetryPolicy(), RetryBudget())
        self._http = httpx2.Client(headers=exchange.user_agent(), transport=transport, limits=exchange.CONNECTIONS)

    @property
    def base_url(self) -> str:
        return self._peer.base_url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(
        self,
        model: str,
        input: Any,
        *,
        version: str | None = None,
        content_type: str | None = None,
        priority: Priority | str | None = None,
        deadline_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """A handle on the stored job; once this returns, the job survives restarts. `input`: JSON value, bytes or a Path."""
        call = protocol.submit_call(
            model,
            protocol.body_of(input, content_type),
            version=version,
            priority=priority,
            deadline_s=deadline_s,
            idempotency_key=idempotency_key,
        )
        return JobHandle(self, protocol.job_of(self.send(call)))

    def predict(
        self,
        model: str,
        input: Any,
        *,
        version: str | None = None,
        content_type: str | None = None,
        deadline_s: float | None = None,
    ) -> Any:
        """The model's output, in one call that holds the line. Not sent again once it may have run."""
        body = protocol.body_of(input, content_type)
        call = protocol.predict_call(model, body, version=version, deadline_s=deadline_s)
        return protocol.value_of(protocol.accepted(self.send(call)))

    def map(
        self,
        model: str,
        inputs: Iterable[Any],
        *,
        in_flight: int = 64,
        ordered: bool = True,
        version: str | None = None,
        content_type: str | None = None,
        priority: Priority | str | None = None,
        deadline_s: float | None = None,
    ) -> Iterator[Any]:
        """The outputs, with at most `in_flight` jobs unfinished. Reads `inputs` only as fast as jobs end.

        The first job that does not succeed raises and ends the iteration; so does closing it. Open jobs are then cancelled.
        """
        protocol.check_window(in_flight)
        window: deque[JobHandle] = deque()
        take = _oldest if ordered else _any_ended
        try:
            for value in inputs:
                if len(window) >= in_flight:
                    yield take(window)
                window.append(
                    self.submit(
                        model, value, version=version, content_type=content_type, priority=priority, deadline_s=deadline_s
                    )
                )
            while window:
                yield take(window)
        finally:
            _abandon(window)

    def job(self, job_id: str) -> JobHandle:
        return JobHandle(self, protocol.job_of(self.send(protocol.job_call(job_id))))

    def timeline(self, job_id: str) -> TimelineView:
        """Where the time of a job went: stages that add up to its total, attempts, the batch it ended in."""
        return protocol.timeline_of(self.send(protocol.timeline_call(job_id)))

    def jobs(self, *, model: str | None = None, status: str | None = None, limit: int = 100) -> Iterator[JobHandle]:
        """Every job the gateway still knows, newest first; fetched in pages of `limit` as the iteration goes on."""
        after: str | None = ""
        while after is not None:
            answer = self.send(protocol.page_call(model=model, status=status, after=after, limit=limit))
            yield from (JobHandle(self, job_view(row)) for row in protocol.rows_of(answer))
            after = protocol.next_page(answer)

    def models(self) -> list[dict[str, Any]]:
        return protocol.rows_of(self.send(protocol.models_call()))

    def model(self, name: str) -> dict[str, Any]:
        return protocol.object_of(self.send(rollouts.model_call(name)))

    def load_version(
        self, model: str, version: str, source: str, *, settings: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The model, with a further version that its workers begin to load from `source` below their `model_dir`."""
        return protocol.object_of(self.send(rollouts.load_call(model, version, source, settings=settings or {})))

    def switch_version(self, model: str, version: str) -> dict[str, Any]:
        """The model, whose callers get `version` from now on unless they name another. Raises `Conflict` unless it is ready."""
        return protocol.object_of(self.send(rollouts.switch_call(model, version)))

    def unload_version(self, model: str, version: str) -> dict[str, Any]:
        """The model without that version; what waits for it is still run."""
        return protocol.object_of(self.send(rollouts.unload_call(model, version)))

    def reset_model(self, model: str) -> dict[str, Any]:
        """The model as the settings say, every change at run time taken back; what waits for other versions is still run."""
        return protocol.object_of(self.send(rollouts.reset_call(model)))

    def ask_profile(self, model: str, *, version: str | None = None) -> dict[str, Any]:
        """The wish that each slot of the version records the next batch it is given; `profile` tells what came of it."""
        return protocol.object_of(self.send(rollouts.ask_profile_call(model, version)))

    def profile(self, model: str) -> dict[str, Any]:
        """The last wish, and per slot: armed, or done with the folder and the seconds per stage."""
        return protocol.object_of(self.send(rollouts.profile_call(model)))

    def workers(self) -> list[dict[str, Any]]:
        return protocol.rows_of(self.send(protocol.workers_call()))

    def run(
        self,
        model: str,
        inputs: Iterable[Any] | Path | str,
        *,
        options: RunOptions | None = None,
    ) -> RunHandle:
        """A run over many inputs: values, a local file, or the id of one uploaded before. Returns once it is stored.

        `for result in run` waits for its end and gives one result per input, in order.
        """
        wanted = options or RunOptions()
        if isinstance(inputs, str):
            return self._run(model, inputs, wanted, rows=None)
        if isinstance(inputs, Path):
            return self._run(model, runs.file_of(self.send(runs.upload_call(inputs))), wanted, rows=None)
        with runs.as_file(inputs) as (file, count):
            file_id = runs.file_of(self.send(runs.upload_call(file)))
        return self._run(model, file_id, replace(wanted, columns={"": runs.ROW}, input_format="jsonl"), rows=count)

    def run_handle(self, run_id: str) -> RunHandle:
        return RunHandle(self, runs.run_of(self.send(runs.read_call(run_id))))

    def _run(self, model: str, file_id: str, options: RunOptions, *, rows: int | None) -> RunHandle:
        view = runs.run_of(self.send(runs.create_call(model, file_id, options)))
        return RunHandle(self, view, rows=rows, output_format=options.output_format)

    def lines(self, link: str) -> Iterator[str]:
        """The lines of a file of the gateway as they come, without holding it."""
        with self._peer.sending(HttpCall("GET", link)) as asked, self._http.stream(**asked) as response:
            if response.status_code >= 400:
                response.read()
            protocol.accepted(exchange.head_of(response))
            yield from response.iter_lines()

    def send(self, call: HttpCall) -> Answer:
        """The gateway's answer, good or bad, after the retries the call allows. Raises `GatewayUnreachable` for none at all."""
        return self._retries.blocking(call)(self._exchange, call)

    def follow(self, flow: Flow[T]) -> T:
        """What the flow comes to."""
        try:
            step = next(flow)
            while True:
                step = flow.send(self._take(step))
        except StopIteration as end:
            value: T = end.value
            return value

    def _take(self, step: HttpCall | Pause) -> Reply:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return Reply(flows.NOTHING, time.monotonic())
        answer = self.send(step)
        return Reply(answer, time.monotonic())

    def _exchange(self, call: HttpCall) -> Answer:
        try:
            with self._peer.sending(call) as asked:
                return exchange.answer_of(self._http.request(**asked))
        except httpx2.TransportError as error:
            raise self._peer.fault(error) from error


class JobHandle:
    """One job of one client. `view` is the job as last seen; `wait`, `result`, `cancel` and `refresh` bring it up to date."""

    def __init__(self, client: Client, view: JobView) -> None:
        self._client = client
        self.view = view

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r}, {self.status!r})"

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def status(self) -> str:
        return self.view.status

    def refresh(self) -> JobView:
        self.view = protocol.job_of(self._client.send(protocol.poll_call(self.view)))
        return self.view

    def wait(self, timeout_s: float | None = None) -> JobView:
        """The job at its end, however it ended. Raises `WaitTimeout` when `timeout_s` passes first."""
        self.view = self._client.follow(flows.wait_flow(self.view, timeout_s=timeout_s, now=time.monotonic()))
        return self.view

    def result(self, timeout_s: float | None = None) -> Any:
        """The output: decoded JSON, or bytes. Raises `JobFailed`, `JobCancelled`, `JobExpired`, `WaitTimeout`."""
        found = self._client.follow(flows.result_flow(self.view, timeout_s=timeout_s, now=time.monotonic()))
        self.view = found.job
        return found.value

    def timeline(self) -> TimelineView:
        return self._client.timeline(self.id)

    def cancel(self) -> JobView:
        """The job with the cancel noted: at once if it waits, at its batch's end if it runs. `Conflict` if it has ended."""
        self.view = protocol.job_of(self._client.send(protocol.cancel_call(self.view)))
        return self.view

    def replay(self, *, version: str | None = None, idempotency_key: str | None = None) -> JobHandle:
        """A new job with the input of this one, which brought no output; `Conflict` if that input is no longer stored."""
        call = protocol.replay_call(self.view, version=version, idempotency_key=idempotency_key)
        return JobHandle(self._client, protocol.job_of(self._client.send(call)))


def _oldest(window: deque[JobHandle]) -> Any:
    """The output of the job submitted first. It leaves the window only once it has ended, so that `_abandon` finds it else."""
    value = window[0].result()
    window.popleft()
    return value


def _any_ended(window: deque[JobHandle]) -> Any:
    """The output of a job that has ended; waits on each in turn, a second at most."""
    patience_s = 0.0
    while True:
        for turn in range(len(window)):
            # Only the first of a round is waited for; the others are asked whether they have ended meanwhile.
            with contextlib.suppress(WaitTimeout):
                value = window[0].result(timeout_s=patience_s if turn == 0 else 0.0)
                window.popleft()
                return value
            window.rotate(-1)
        patience_s = 1.0


def _abandon(window: Iterable[JobHandle]) -> None:
    for handle in window:
        # Nobody waits for these any more. One that has just ended, or a gateway that is gone, must not hide why we stop.
        with contextlib.suppress(PenstockError):
            handle.cancel()
