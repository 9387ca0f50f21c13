from __future__ import annotations

import json
from typing import Any

from penstock.extensions.replicate.cog.events import CogEvents
from penstock.gateway.jobs.events.encoding import HEARTBEAT
from penstock.gateway.jobs.events.told import ToldEvent
from penstock.job import Job, JobState, Priority, new_job_id

ENDED = Job(new_job_id("m"), JobState.SUCCEEDED, "1", Priority.INTERACTIVE, 1.0, 2.0)


async def view(job: Job) -> dict[str, Any]:
    return {"status": job.state.public}


def told(name: str, data: Any = None, ended: Job | None = None) -> ToldEvent:
    return ToldEvent(name, "1.0.0", json.dumps({} if data is None else data).encode(), ended)


async def names(events: CogEvents, *sent: ToldEvent) -> list[str]:
    text = (await events.encode(sent)).decode()
    return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]


async def test_start_comes_once_and_before_all_others() -> None:
    events = CogEvents("mine", view)
    assert await names(events, told("status", {"status": "queued"})) == []
    assert await names(events, told("status", {"status": "running"}), told("chunk", "a")) == ["start", "output"]
    assert await names(events, told("status", {"status": "running"}), told("end", ended=ENDED)) == ["completed"]
    assert events.is_over
    assert await names(CogEvents("mine", view), told("end", ended=ENDED)) == ["start", "completed"]


async def test_chunks_are_numbered_and_may_be_any_json() -> None:
    events = CogEvents("mine", view)
    await events.encode([told("status", {"status": "running"})])
    assert await events.encode([ToldEvent("chunk", "", b'"two\\nlines"')]) == (
        b'event: output\ndata: {"chunk":"two\\nlines","index":0}\n\n'
    )
    assert await events.encode([ToldEvent("chunk", "", b'{"x":[1]}')]) == (
        b'event: output\ndata: {"chunk":{"x":[1]},"index":1}\n\n'
    )


async def test_progress_is_a_line_of_the_log() -> None:
    text = (await CogEvents("mine", view).encode([told("progress", {"fraction": 0.4, "note": "step 2"})])).decode()
    said = json.loads(text.split("\n\n")[1].partition("data: ")[2])
    assert said == {"source": "stderr", "data": " 40%|########            | 40/100 step 2\n"}


async def test_a_stream_that_begins_anew_ends_with_an_error() -> None:
    events = CogEvents("mine", view)
    assert await names(events, told("chunk", "a"), told("restart"), told("chunk", "b"), told("end", ended=ENDED)) == [
        "start",
        "output",
        "error",
    ]
    assert events.is_over


async def test_a_silence_is_a_comment() -> None:
    assert await CogEvents("mine", view).encode([]) == HEARTBEAT
