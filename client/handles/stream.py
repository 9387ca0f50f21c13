# Generated from client/handles/stream_aio.py by `make sync-client`. Change that file, not this one.
"""Events and chunks as they come, over lost connections. `job_events.py` says what they mean."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.backoff import Backoff, BackoffCounter
from penstock.client import flows, job_events
from penstock.client.job_events import JobEvent, OnRestart
from penstock.client.problems import GatewayUnreachable
from penstock.client.protocol import HttpCall

if TYPE_CHECKING:
    from penstock.client.sync import Client

_PAUSES = Backoff(0.05, 5.0)


def events(client: Client, job_id: str, last_event_id: str) -> Iterator[JobEvent]:
    """The events of the job after that one, up to its end. After a lost connection it continues where it stopped."""
    failures = BackoffCounter(_PAUSES)
    while True:
        try:
            for line in client.streamed(job_events.events_call(job_id, last_event_id)):
                event = job_events.parse(line)
                if event is not None:
                    failures.reset()
                    last_event_id = event.id
                    yield event
                    if event.name == "end":
                        return
        except GatewayUnreachable:
            if failures.failures >= job_events.MOST_FAILURES:
                raise
        # A gateway that stops closes its streams; another one continues them.
        time.sleep(failures.count_failure())


def predicted(client: Client, call: HttpCall) -> Iterator[JobEvent]:
    """The events of the prediction's job."""
    job_id = last_event_id = ""
    try:
        for line in client.streamed(job_events.as_stream(call)):
            event = job_events.parse(line)
            if event is not None:
                view = job_events.seen(event)
                job_id, last_event_id = view.id if view else job_id, event.id
                yield event
                if event.name == "end":
                    return
    except GatewayUnreachable:
        if not job_id:
            raise
    for event in events(client, job_id, last_event_id):
        yield event


def chunks(client: Client, told: Iterator[JobEvent], on_restart: OnRestart | None) -> Iterator[Any]:
    """The chunks; of a job without any the output, unless it is the empty list of a stream that had none."""
    is_empty = True
    for event in told:
        if event.name == "chunk":
            is_empty = False
            yield event.data
        elif event.name == "restart":
            is_empty = True
            job_events.on_restarted(on_restart)
        elif event.name == "end":
            job = job_events.on_end(event)
            if is_empty:
                ended = client.follow(flows.result_flow(job, timeout_s=None, now=time.monotonic()))
                if ended.value != []:
                    yield ended.value
