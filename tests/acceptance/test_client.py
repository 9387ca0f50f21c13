"""The synchronous and the asynchronous client against a real gateway and worker."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from penstock import AsyncClient, Client, Media
from penstock.client.problems import JobFailed
from penstock.errors import Conflict, InvalidInput, NotFound, PenstockError
from penstock.loadtest.stack import free_port
from tests.acceptance.test_cli import SQUARE, Up, stopped
from tests.acceptance.test_metrics import Scrape, scraped
from tests.acceptance.warm_up import started
from tests.eventually import eventually


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("client")
    (folder / "moody.py").write_text(
        "import penstock\n\n\n@penstock.model\ndef moody(item: int) -> int:\n"
        "    if item < 0:\n        raise ValueError('below zero')\n    return item\n"
    )
    (folder / "files.py").write_text(
        "from penstock import Media, model\n\n\n@model\ndef files(item: str):\n"
        "    one, *more = [Media(name.encode() * 100_000, 'text/csv', f'{name}.csv') for name in item.split()]\n"
        "    return {'files': [one, *more]} if more else one\n"
    )
    (folder / "penstock.toml").write_text(
        f'[worker]\nmetrics_port = {free_port()}\n[models.square]\nsource = "{SQUARE}"\n[models.moody]\nsource = "moody.py"\n'
        '[models.files]\nsource = "files.py"\n'
    )
    running = started(folder)
    yield running
    assert stopped(running) == 0


@pytest.fixture
def client(up: Up) -> Iterator[Client]:
    with Client(up.ready["url"]) as client:
        yield client


def test_up_serves_its_workers_figures_where_it_was_told_to(up: Up, client: Client) -> None:
    # The first test here, because a job that another test did not wait for would be counted too.
    [scrape] = up.ready["metrics"]["worker"]
    assert up.ready["metrics"]["gateway"] == [f"{up.ready['url']}/metrics"]
    port = int(scrape.removeprefix("http://127.0.0.1:").removesuffix("/metrics"))
    settings = (up.folder / "penstock.toml").read_text()
    assert f"metrics_port = {port}\n" in settings

    def ended() -> tuple[Scrape, float]:
        found = Scrape(httpx2.get(up.ready["metrics"]["gateway"][0]).text)
        return found, found("jobs_total", model="square", status="succeeded")

    before, batches = ended()[1], scraped(port)("batch_size_count", model="square")
    assert client.predict("square", {"x": 3}) == {"y": 9}
    # The answer may arrive before the worker has counted the batch.
    eventually(lambda: scraped(port)("batch_size_count", model="square") == batches + 1.0)
    gateway, after = ended()
    assert after == before + 1.0
    # The version of penstock is not shown on the port of the API.
    assert not gateway.has("build_info", version="0.1.0")
    assert not any(name.startswith("ts_") for name in gateway.types)


def test_predict_answers_at_once(client: Client) -> None:
    assert client.predict("square", {"x": 4}) == {"y": 16}


def test_submit_then_result(client: Client) -> None:
    job = client.submit("square", {"x": 5}, priority="bulk", deadline_s=60)
    assert job.result(timeout_s=30) == {"y": 25}
    seen = job.wait()
    assert (seen.status, seen.priority) == ("succeeded", "bulk")
    assert seen.batch is not None
    assert seen.batch.size == 1


def test_the_same_idempotency_key_is_the_same_job(client: Client) -> None:
    first = client.submit("square", {"x": 6}, idempotency_key="six")
    second = client.submit("square", {"x": 6}, idempotency_key="six")
    assert first.id == second.id


def test_map_keeps_the_order_of_many(client: Client) -> None:
    outputs = client.map("square", ({"x": n} for n in range(200)), in_flight=32)
    assert [output["y"] for output in outputs] == [n * n for n in range(200)]


class Counting(httpx2.HTTPTransport):
    """Counts the requests that it sends."""

    requests = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests += 1
        return super().handle_request(request)


def test_a_map_makes_far_fewer_requests_than_it_has_rows(up: Up) -> None:
    """Regression: with two requests a row, `map` gave fewer rows per second than a loop of `predict`."""
    counting = Counting()
    with Client(up.ready["url"], transport=counting) as client:
        assert [output["y"] for output in client.map("square", ({"x": n} for n in range(320)))] == [n * n for n in range(320)]
    # Ten groups of 32. Each is asked for once if it has ended by then, and at most once per row if its jobs end alone.
    assert counting.requests < 320


def test_a_map_goes_on_past_the_rows_that_fail_or_are_refused(client: Client) -> None:
    rows = [1, -1, "no number", 2]
    first, failed, refused, last = client.map("moody", rows, in_flight=16, return_exceptions=True)
    assert (first, last) == (1, 2)
    assert isinstance(failed, JobFailed)
    assert "below zero" in str(failed)
    assert isinstance(refused, InvalidInput)
    with pytest.raises(JobFailed, match="below zero"):
        list(client.map("moody", [1, -1, 2]))


async def test_a_map_gives_outputs_that_are_files_or_too_large_for_a_list(up: Up, client: Client) -> None:
    texts = ["a", "b", "é"]
    expected = [Media(text.encode() * 100_000, "text/csv", f"{text}.csv") for text in texts]
    assert list(client.map("files", texts)) == expected
    async with AsyncClient(up.ready["url"]) as other:
        assert [output async for output in other.map("files", texts)] == expected


def test_unordered_map_gives_all(client: Client) -> None:
    outputs = client.map("square", ({"x": n} for n in range(50)), ordered=False)
    assert sorted(output["y"] for output in outputs) == [n * n for n in range(50)]


def test_a_job_that_fails_raises_with_the_models_words(client: Client) -> None:
    with pytest.raises(JobFailed, match="below zero") as caught:
        client.submit("moody", -1).result(timeout_s=30)
    assert caught.value.job.status == "failed"


def test_a_failed_prediction_raises_too(client: Client) -> None:
    with pytest.raises(PenstockError, match="below zero"):
        client.predict("moody", -1)


def test_cancelling_after_the_end_is_a_conflict(client: Client) -> None:
    job = client.submit("square", {"x": 1})
    job.wait(timeout_s=30)
    with pytest.raises(Conflict):
        job.cancel()


def test_an_unknown_model_is_not_found(client: Client) -> None:
    with pytest.raises(NotFound, match="square"):
        client.submit("squar", {"x": 1})


def test_jobs_are_listed_over_pages(client: Client) -> None:
    ids = [client.submit("square", {"x": n}).id for n in range(5)]
    listed = [job.id for job in client.jobs(model="square", limit=2)]
    assert [job for job in listed if job in ids] == ids[::-1]


def test_models_and_workers_are_listed(client: Client) -> None:
    assert {model["name"] for model in client.models()} == {"square", "moody", "files"}
    assert client.workers()[0]["slots"]


async def test_the_async_client_does_the_same(up: Up) -> None:
    async with AsyncClient(up.ready["url"]) as client:
        assert await client.predict("square", {"x": 4}) == {"y": 16}
        job = await client.submit("square", {"x": 5})
        assert await job.result(timeout_s=30) == {"y": 25}
        outputs = [output["y"] async for output in client.map("square", ({"x": n} for n in range(100)))]
        assert outputs == [n * n for n in range(100)]
        unordered = [output["y"] async for output in client.map("square", ({"x": n} for n in range(100)), ordered=False)]
        assert sorted(unordered) == outputs
        assert (await client.history("square", since=time.time() - 60))["model"] == "square"


def test_a_file_comes_back_as_a_file_and_the_command_saves_it_under_its_name(up: Up, client: Client, tmp_path: Path) -> None:
    # Large enough to be kept outside the record.
    expected = Media("é".encode() * 100_000, "text/csv", "é.csv")
    job = client.submit("files", "é")
    assert job.result(timeout_s=60) == expected
    assert client.predict("files", "é") == expected
    assert up.penstock("call", "files", '"é"', "-o", f"{tmp_path}").stdout == f"{tmp_path / 'é.csv'}\n"
    assert (tmp_path / "é.csv").read_bytes() == expected.data
    again = up.penstock("jobs", "result", job.id, "-o", f"{tmp_path}")
    assert (again.returncode, "exists already" in again.stderr) == (5, True)
    assert up.penstock("jobs", "result", job.id, "-o", "here.csv").returncode == 0
    assert (up.folder / "here.csv").read_bytes() == expected.data


async def test_a_file_comes_back_as_a_file_to_the_other_client_too(up: Up) -> None:
    async with AsyncClient(up.ready["url"]) as client:
        assert await client.predict("files", "a") == Media(b"a" * 100_000, "text/csv", "a.csv")


async def test_several_files_come_back_in_their_places(up: Up, client: Client, tmp_path: Path) -> None:
    expected = {"files": [Media(name.encode() * 100_000, "text/csv", f"{name}.csv") for name in "ab"]}
    assert client.predict("files", "a b") == expected
    assert client.submit("files", "a b").result(timeout_s=60) == expected
    async with AsyncClient(up.ready["url"]) as other:
        assert await other.predict("files", "a b") == expected
    assert up.penstock("call", "files", '"a b"', "-o", f"{tmp_path}").stdout == f"{tmp_path}\n"
    assert (tmp_path / "b.csv").read_bytes() == b"b" * 100_000


WATCHED = """
import sys
from penstock import Client

with Client(sys.argv[1]) as client:
    assert list(client.map("moody", [1, 2, 3], progress=True)) == [1, 2, 3]
    job = client.submit("moody", 4)
    assert job.wait(progress=True).status == "succeeded"
    run = client.run("moody", [5, 6])
    assert run.wait(progress=True).status == "completed"
print("done")
"""


def run_at_a_terminal(command: list[str]) -> tuple[bytes, str]:
    """What a program writes to standard output, and what it shows on a terminal that is its standard error."""
    screen, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 160))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal that nobody holds any more
            while part := os.read(screen, 1 << 16):
                shown += part
        said, _ = process.communicate(timeout=60)
    os.close(screen)
    return said, shown.decode(errors="replace")


def test_at_a_terminal_a_map_a_job_and_a_run_show_how_far_they_are_and_in_a_log_nothing(up: Up) -> None:
    command = [sys.executable, "-c", WATCHED, up.ready["url"]]
    said, shown = run_at_a_terminal(command)
    assert said == b"done\n", shown
    assert all(part in shown for part in ("3/3", "100/100", "2/2")), shown
    logged = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert (logged.stdout, logged.stderr) == (b"done\n", b"")
