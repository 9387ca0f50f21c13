"""Streams over HTTP: chunks as they come, what was missed, restarts, and clients that leave. The worker is the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from penstock.broker.records import ClaimedJob
from penstock.model_spec import VersionInfo
from tests.acceptance.gateway_process import Hand, gateway_process
from tests.eventually import eventually

MODELS = {"speaker": {"source": "teller.py"}}
# So many predictions may stream at once, beside the one that may be answered at once.
STREAMS = 3
LINES, SSE = {"Accept": "application/x-ndjson"}, {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def client(redis_url: str, folder: Path) -> Iterator[httpx2.Client]:
    env = {"PENSTOCK_TORCHSERVE__METRICS": "true"}
    with gateway_process(
        redis_url, folder, models=MODELS, env=env, heartbeat_s=0.3, max_predictions=1, max_streams=STREAMS
    ) as client:
        yield client


class Teller(Hand):
    """A worker by hand whose model yields."""

    def lose(self, job: ClaimedJob) -> ClaimedJob:
        """Have the job taken back, and take it again."""
        self.store.sweep(self.model, gone=[self.name])
        return self.take()


@pytest.fixture
def teller(redis_url: str, client: httpx2.Client) -> Teller:
    hand = Teller(redis_url, "speaker")
    hand.announce(VersionInfo(streams=True))
    for job in hand.claim().jobs:
        hand.finish(job)
    eventually(lambda: client.get("/v1/models/speaker").json()["ready"])
    return hand


@pytest.fixture
def store(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as store:
        yield store


def submit(client: httpx2.Client) -> dict[str, str]:
    links: dict[str, str] = client.post("/v1/models/speaker/jobs", json={}).json()["links"]
    return links


def events(text: str) -> list[tuple[str, Any]]:
    """The names and data of a stream of lines."""
    found = [json.loads(line) for line in text.splitlines() if line]
    return [(one["event"], one["data"]) for one in found]


def told(text: str) -> list[Any]:
    """The chunks and restarts, and the status at the end."""
    wanted = [(name, data) for name, data in events(text) if name != "status"]
    return [data if name == "chunk" else data["status"] if name == "end" else name for name, data in wanted]


def test_chunks_come_while_the_job_runs_and_the_end_has_the_result(client: httpx2.Client, teller: Teller) -> None:
    def tell() -> None:
        jobs.append(teller.take())
        teller.say(jobs[0], "Hello", ", ")

    jobs: list[ClaimedJob] = []
    telling = threading.Thread(target=tell)
    telling.start()
    with client.stream("POST", "/predictions/speaker", json={}, headers=LINES) as stream:
        assert (stream.status_code, stream.headers["content-type"]) == (200, "application/x-ndjson")
        lines = (json.loads(line) for line in stream.iter_lines() if line)
        chunks = (line for line in lines if line["event"] == "chunk")
        assert [next(chunks)["data"] for _ in range(2)] == ["Hello", ", "]
        telling.join()  # its store is for one thread at a time
        teller.say(jobs[0], "world", before=2)
        assert next(chunks)["data"] == "world"
        teller.finish(jobs[0], b'"Hello, world"')
        end = next(lines)
        assert (end["event"], end["data"]["status"], end["data"]["result"]) == ("end", "succeeded", "Hello, world")
        assert end["data"]["id"] == stream.headers["x-penstock-job"]


def test_a_reader_who_comes_late_gets_all_of_the_stream(client: httpx2.Client, teller: Teller) -> None:
    links = submit(client)
    job = teller.take()
    teller.say(job, *range(700))
    teller.finish(job, b'"all"')
    assert told(client.get(links["events"], headers=LINES).text) == [*range(700), "succeeded"]


def test_a_reader_who_comes_back_gets_what_it_missed(client: httpx2.Client, teller: Teller) -> None:
    links = submit(client)
    job = teller.take()
    teller.say(job, "a", "b")
    with client.stream("GET", links["events"], headers=SSE) as stream:
        lines = stream.iter_lines()
        ids = (line.removeprefix("id: ") for line in lines if line.startswith("id: "))
        seen = [next(ids) for _ in range(2)][-1]
    teller.say(job, "c", before=2)
    teller.finish(job)
    again = client.get(links["events"], headers={**LINES, "Last-Event-ID": seen})
    assert told(again.text) == ["b", "c", "succeeded"]


def test_a_stream_that_begins_anew_is_told_as_a_restart(client: httpx2.Client, teller: Teller) -> None:
    links = submit(client)
    job = teller.take()
    teller.say(job, "a", "b")
    with client.stream("GET", links["events"], headers=LINES) as stream:
        lines = (line for line in stream.iter_lines() if line)
        first = [next(lines) for _ in range(3)]
        teller.say(again := teller.lose(job), "x")
        teller.say(again, "y", before=1)
        teller.finish(again)
        rest = list(lines)
    assert told("\n".join([*first, *rest])) == ["a", "b", "restart", "x", "y", "succeeded"]


def test_a_stream_of_which_the_store_lost_a_part_is_told_as_a_restart(
    client: httpx2.Client, teller: Teller, store: redis.Redis
) -> None:
    """A power cut with `everysec` undid a chunk that was told already: what came next was told as if nothing were missing."""
    links = submit(client)
    job = teller.take()
    teller.say(job, "a", "b", "c")
    with client.stream("GET", links["events"], headers=LINES) as stream:
        lines = (line for line in stream.iter_lines() if line)
        first = [next(lines) for _ in range(4)]
        store.rpop(f"ps:{{{teller.model}}}:stream:{job.id.serial}")
        teller.say(job, "d", before=3)
        teller.say(again := teller.take(), "a", "b")
        teller.finish(again)
        rest = list(lines)
    heard = told("\n".join([*first, *rest]))
    # A reader who looks in between hears a further restart, and what is left of the first stream.
    assert (heard[:4], heard[-4:]) == (["a", "b", "c", "restart"], ["restart", "a", "b", "succeeded"])


def test_a_reader_of_a_store_that_comes_back_without_its_last_second_hears_a_reset(
    client: httpx2.Client, teller: Teller, store: redis.Redis
) -> None:
    """A power cut undid a claim: the next one has the same number, and its chunks were told behind those of the first."""
    links = submit(client)
    job = teller.lose(teller.take())
    teller.say(job, "a", "b")
    with client.stream("GET", links["events"], headers=LINES) as stream:
        lines = (line for line in stream.iter_lines() if line)
        first = [next(lines) for _ in range(3)]
        job = replace(job, token=job.token.replace("2:", "1:", 1))
        record = f"ps:{{{teller.model}}}:job:{job.id.serial}"
        store.hset(record, mapping={"epoch": 1, "token": job.token})
        store.hdel(record, "past")
        teller.say(job, "x")
        teller.finish(job)
        rest = list(lines)
    assert told("\n".join([*first, *rest])) == ["a", "b", "reset", "x", "succeeded"]


def test_a_last_attempt_without_a_chunk_takes_back_what_was_told(client: httpx2.Client, teller: Teller) -> None:
    links = submit(client)
    job = teller.take()
    teller.say(job, "a")
    teller.finish(teller.lose(job), b'"else"')
    assert told(client.get(links["events"], headers=LINES).text) == ["a", "restart", "succeeded"]


def test_a_model_that_does_not_stream_sends_its_end_alone(client: httpx2.Client, teller: Teller) -> None:
    with teller.serving(b'"at once"'):
        answer = client.post("/predictions/speaker", json={}, headers=SSE)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert [line for line in answer.text.splitlines() if line.startswith("event:")][-1] == "event: end"
    assert '"result":"at once"' in answer.text


def test_a_stream_says_how_its_job_failed(client: httpx2.Client, teller: Teller) -> None:
    def fail() -> None:
        job = teller.take()
        teller.say(job, "a")
        teller.fail(job, "bad_input", "no more")

    failing = threading.Thread(target=fail)
    failing.start()
    [*_, (name, end)] = events(client.post("/predictions/speaker", json={}, headers=LINES).text)
    failing.join()
    assert (name, end["status"], end["error"]["code"]) == ("end", "failed", "bad_input")


def test_who_leaves_a_streamed_prediction_cancels_its_job(client: httpx2.Client, teller: Teller) -> None:
    jobs: list[ClaimedJob] = []

    def tell() -> None:
        jobs.append(teller.take())
        teller.say(jobs[0], "a")

    telling = threading.Thread(target=tell)
    telling.start()
    with client.stream("POST", "/predictions/speaker", json={}, headers=LINES) as stream:
        assert any('"chunk"' in line for line in stream.iter_lines())
    telling.join()
    job = jobs[0].id
    eventually(lambda: getattr(teller.store.read(job), "cancel_requested", False))


def test_a_refusal_of_a_streamed_prediction_is_a_plain_problem(client: httpx2.Client, teller: Teller) -> None:
    answer = client.post("/predictions/nobody", json={}, headers=SSE)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_gateway_that_comes_back_goes_on_where_the_reader_was(
    redis_url: str, client: httpx2.Client, teller: Teller, folder: Path
) -> None:
    links = submit(client)
    job = teller.take()
    teller.say(job, "a", "b")
    with (
        gateway_process(redis_url, folder / "second", models=MODELS) as second,
        second.stream("GET", links["events"], headers=LINES) as stream,
    ):
        seen = next(line["id"] for line in map(json.loads, stream.iter_lines()) if line["data"] == "b")
    teller.say(job, "c", before=2)
    teller.finish(job)
    with gateway_process(redis_url, folder / "second", models=MODELS) as second:
        assert told(second.get(links["events"], headers={**LINES, "Last-Event-ID": seen}).text) == ["c", "succeeded"]


def test_the_page_of_a_job_shows_how_far_it_is(client: httpx2.Client, teller: Teller) -> None:
    links = submit(client)
    job = teller.take()
    teller.report(job, 0.4, "step <12> of 30")
    page = client.get(links["self"].replace("/v1/", "/ui/")).text
    assert "40 %: step &lt;12&gt; of 30" in page
    teller.finish(job)


def test_streams_take_no_place_of_predictions_and_have_a_bound_of_their_own(client: httpx2.Client, teller: Teller) -> None:
    url = "/predictions/speaker"
    with ExitStack() as open_streams:
        for _ in range(STREAMS):
            # A stream of the test before may end only now.
            eventually(
                lambda: open_streams.enter_context(client.stream("POST", url, json={}, headers=LINES)).status_code == 200
            )
        refused = client.post(url, json={}, headers=LINES)
        assert (refused.status_code, refused.json()["code"]) == (503, "gateway_busy")
        assert "gateway.max_streams" in refused.json()["hint"]
        with teller.serving(b'"at once"'):
            assert client.post(url, json={}).json() == "at once"


def answered_us(client: httpx2.Client) -> float:
    """The microseconds of all answered predictions, as TorchServe counts them."""
    text = client.get("/metrics").text
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("ts_inference_latency_microseconds{"))


def test_a_streamed_prediction_is_an_answer_in_torchserves_metrics(client: httpx2.Client, teller: Teller) -> None:
    """It was counted as a request and never as an answer, so that the mean of all answers was too small."""
    before = answered_us(client)
    with teller.serving(b'"at once"'):
        client.post("/predictions/speaker", json={}, headers=LINES)
    eventually(lambda: answered_us(client) > before)
