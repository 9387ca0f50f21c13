"""Streams in the clients and on the command line, against a real gateway, worker and models that yield."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import AsyncClient, Client
from penstock.client.problems import JobFailed, StreamRestarted
from tests.acceptance.many_clients import Answer, Connection, allow_connections
from tests.acceptance.test_cli import Up, stopped
from tests.acceptance.warm_up import started
from tests.eventually import eventually
from tests.integration.worker_process import HANDLERS

EXAMPLES = HANDLERS.parents[1] / "examples"
STREAMS = 200


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "penstock.toml").write_text(
        f'[models.spell]\nsource = "{HANDLERS}/speller.py:spell"\nwarm_up = false\n'
        f'[models.chorus]\nsource = "{HANDLERS}/speller.py:Speller"\nwarm_up = false\n'
        f'[models.steady]\nsource = "{HANDLERS}/steady.py"\nwarm_up = false\n'
        f'[models.teller]\nsource = "{EXAMPLES}/teller.py"\n[models.heat]\nsource = "{EXAMPLES}/heat.py"\n'
    )
    running = started(folder)
    yield running
    assert stopped(running) == 0


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.ready["url"]) as client:
        yield client


def test_chunks_come_out_of_the_client_as_the_model_yields_them(client: Client, tmp_path: Path) -> None:
    stream = client.stream("spell", {"text": "abc", "until": str(tmp_path / "gate")})
    assert [next(stream), next(stream)] == ["a", "b"]
    (tmp_path / "gate").touch()
    assert list(stream) == ["c"]


async def test_a_model_that_does_not_yield_streams_its_output_as_one_chunk(up: Up, client: Client) -> None:
    """Regression: the stream of such a model was empty, as if it had no output."""
    item = {"steps": 1, "tag": "x"}
    output = client.predict("steady", item)
    assert output is not None
    assert list(client.stream("steady", item)) == [output]
    assert list(client.submit("steady", item).stream()) == [output]
    async with AsyncClient(up.ready["url"]) as other:
        assert [chunk async for chunk in other.stream("steady", item)] == [output]
    assert list(client.stream("spell", {"text": ""})) == [], "a stream may be empty"


def test_a_stream_ends_with_the_error_of_its_job(client: Client) -> None:
    stream = client.stream("spell", {"text": "abc", "raise_at": 1})
    assert next(stream) == "a"
    with pytest.raises(JobFailed, match="cannot spell on"):
        next(stream)


def test_who_stops_reading_cancels_the_job(client: Client) -> None:
    stream = client.stream("spell", {"text": "on and on ", "forever": True, "slowly": True})
    assert next(stream) == "o"
    stream.close()  # type: ignore[attr-defined]
    newest = next(client.jobs(model="spell", limit=1))
    eventually(lambda: newest.refresh().status == "cancelled")


def test_a_restart_is_told_or_ends_the_stream(client: Client, tmp_path: Path) -> None:
    letters: list[str] = []
    for name, on_restart in (("told", letters.clear), ("untold", None)):
        mark = tmp_path / name
        stream = client.stream("spell", {"text": "abc", "exit_at": 2, "mark": str(mark)}, on_restart=on_restart)
        letters += [next(stream), next(stream)]
        # The process of the model ends now, with two letters told.
        mark.with_suffix(".go").touch()
        if on_restart:
            letters += list(stream)
            assert letters == ["a", "b", "c"]
        else:
            with pytest.raises(StreamRestarted):
                next(stream)


def test_a_job_tells_its_events_and_its_chunks_again(client: Client) -> None:
    job = client.submit("spell", {"text": "abc"})
    events = list(job.events())
    assert [event.data for event in events if event.name == "chunk"] == ["a", "b", "c"]
    assert (events[-1].name, job.status) == ("end", "succeeded")
    assert list(job.stream()) == ["a", "b", "c"]
    [second] = [event for event in events if event.data == "b"]
    assert [event.data for event in job.events(last_event_id=second.id) if event.name == "chunk"] == ["c"]


def test_progress_is_in_the_view_and_among_the_events(client: Client) -> None:
    job = client.submit("steady", {"steps": 8, "tag": "x"})
    assert "progress" in [event.name for event in job.events()]
    progress = job.refresh().progress
    assert progress is not None
    assert (progress.fraction, progress.note) == (1.0, "step 8 of 8: x")


async def test_the_async_client_streams_too(up: Up) -> None:
    async with AsyncClient(up.ready["url"]) as client:
        assert [chunk async for chunk in client.stream("spell", {"text": "abc"})] == ["a", "b", "c"]
        job = await client.submit("spell", {"text": "ab"})
        assert [chunk async for chunk in job.stream()] == ["a", "b"]


def test_the_command_line_prints_what_comes(up: Up, client: Client) -> None:
    called = up.penstock("call", "spell", '{"text": "penstock"}')
    assert (called.returncode, called.stdout) == (0, "penstock\n")
    job = client.submit("steady", {"steps": 8, "tag": "x"})
    watched = up.penstock("jobs", "watch", job.id)
    assert watched.stderr.splitlines()[-1] == "succeeded"
    assert "100 %, step 8 of 8: x" in up.penstock("jobs", "show", job.id).stdout
    failed = up.penstock("call", "spell", '{"text": "abc", "raise_at": 2}')
    assert (failed.returncode, failed.stdout) == (1, "ab\n")


def test_the_example_that_tells_streams_its_letters(up: Up, client: Client) -> None:
    assert up.penstock("call", "teller", '"A job"').stdout.startswith(" is stored, a worker runs the model")
    letters = list(client.stream("teller", "the wor"))
    assert (len(letters), "".join(letters[:8])) == (80, "ker runs")


def test_the_example_that_simulates_says_how_far_it_is_and_stops_when_it_is_cancelled(client: Client) -> None:
    job = client.submit("heat", {"steps": 1_000_000_000})
    assert any(event.name == "progress" for event in job.events())
    assert client.job(job.id).view.progress is not None
    job.cancel()
    assert job.wait(timeout_s=60).status == "cancelled"


async def test_two_hundred_streams_at_once_have_their_own_chunks_in_order_and_an_end(up: Up, tmp_path: Path) -> None:
    allow_connections(STREAMS)
    gate, port = tmp_path / "gate", int(up.ready["url"].rpartition(":")[2])
    readers = [Connection(port) for _ in range(STREAMS)]
    texts = [f"stream {number} of {STREAMS}" for number in range(STREAMS)]
    heads = await asyncio.gather(*(_open_stream(one, text, gate) for one, text in zip(readers, texts, strict=True)))
    assert {head.status for head in heads} == {200}
    # No job ends before all streams are open: the last letter of each waits for the gate.
    gate.touch()
    answers = await asyncio.gather(*(reader.whole(head) for reader, head in zip(readers, heads, strict=True)))
    for text, answer in zip(texts, answers, strict=True):
        told = [json.loads(line) for line in answer.body.splitlines() if line]
        news = [event for event in told if event["event"] != "status"]
        assert [event["data"] for event in news[:-1]] == list(text)
        assert [int(event["id"].rpartition(":")[2]) for event in news[:-1]] == list(range(1, len(text) + 1))
        assert (news[-1]["event"], news[-1]["data"]["status"], news[-1]["data"]["result"]) == ("end", "succeeded", text)
    await asyncio.gather(*(reader.close() for reader in readers))


async def _open_stream(reader: Connection, text: str, gate: Path) -> Answer:
    headers = {"content-type": "application/json", "accept": "application/x-ndjson"}
    body = json.dumps({"text": text, "until": str(gate)}).encode()
    return await reader.head_of("POST", "/predictions/chorus", headers, body)
