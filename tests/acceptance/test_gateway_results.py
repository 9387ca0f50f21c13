"""Outputs that are files, as a real gateway answers with them: types, names, ranges, and files that are large."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from email import message_from_bytes
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from penstock import Media
from penstock.broker.blobs.files import LocalBlobs
from penstock.broker.records import BatchStamp, ClaimedJob, Ending
from penstock.gateway.asgi.multipart import multipart_parts
from penstock.handlers.media import encode
from penstock.job import JobState, Payload
from penstock.outputs.media import stored_type
from tests.acceptance.gateway_process import GatewayClient, Hand, gateway_process
from tests.eventually import eventually

MIB = 1 << 20
LARGE = os.urandom(MIB) * 3 + b"end"
MODELS = {"square": {"source": "square.py:Square"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def client(redis_url: str, folder: Path) -> Iterator[GatewayClient]:
    with gateway_process(redis_url, folder, models=MODELS) as client:
        yield client


@pytest.fixture
def hand(redis_url: str, client: GatewayClient) -> Hand:
    hand = Hand(redis_url)
    hand.announce()
    eventually(lambda: client.get("/readyz").status_code == 200)
    return hand


def ended(client: httpx2.Client, hand: Hand, output: bytes, media: str) -> str:
    """The path of the result of a job that has ended with this output."""
    job = client.post("/v1/models/square/jobs", json={"x": 4}).json()
    hand.finish(hand.take(), output, media=media)
    return str(job["links"]["result"])


def ended_large(client: httpx2.Client, hand: Hand, folder: Path, output: bytes, media: str) -> str:
    """As `ended`, with the output in a blob, as a worker stores what is large."""
    job = client.post("/v1/models/square/jobs", json={"x": 4}).json()
    finish_large(hand, hand.take(), folder, output, media)
    return str(job["links"]["result"])


def finish_large(hand: Hand, job: ClaimedJob, folder: Path, output: bytes, media: str, *, size: int = 0) -> None:
    """End the job with an output in a blob; `size` makes the file longer, by zeros that take no disk."""
    [blob] = LocalBlobs(folder / "blobs").append_all([(f"{job.id.serial}.9f86d081.out", output)])
    if size:
        os.truncate(next((folder / "blobs").rglob(f"{job.id.serial}*.out")), size)
    ending = Ending(job.id, job.token, JobState.SUCCEEDED, Payload(media, blob=blob))
    hand.store.finish([ending], worker=hand.name, stamp=BatchStamp("b1", 1, "idle"))


def test_a_file_keeps_its_type_and_its_name_on_every_way(client: GatewayClient, hand: Hand) -> None:
    media = stored_type("image/png", "café.png")
    answers = [client.get(ended(client, hand, b"PNG", media))]
    with hand.serving(b"PNG", media=media):
        answers.append(client.post("/predictions/square", json={"x": 4}))
        answers.append(client.post("/v1/models/square/jobs", json={"x": 4}, headers={"prefer": "wait=20"}))
    for answer in answers:
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"PNG", "image/png")
        assert answer.headers["content-disposition"] == "inline; filename=\"caf_.png\"; filename*=UTF-8''caf%C3%A9.png"
        assert answer.headers["content-length"] == "3"
    assert answers[1].headers["x-penstock-job"]
    assert answers[2].headers["location"].startswith("/v1/jobs/")


@pytest.mark.parametrize("media", ["text/html", "image/svg+xml", "application/xhtml+xml", "text/xml; charset=utf-8"])
def test_no_output_runs_as_a_page_of_the_gateway(client: GatewayClient, hand: Hand, media: str) -> None:
    path = ended(client, hand, b"<script>alert(1)</script>", media)
    with hand.serving(b"<script>alert(1)</script>", media=media):
        for answer in (client.get(path), client.post("/predictions/square", json={"x": 4})):
            assert answer.headers["content-disposition"] == "attachment"
            assert answer.headers["content-security-policy"] == "sandbox"
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("size", [100, len(LARGE)], ids=["in the record", "in a blob"])
def test_a_part_of_a_result_is_read_with_a_range(client: GatewayClient, hand: Hand, folder: Path, size: int) -> None:
    output = LARGE[-size:]
    is_inline, media = size == 100, "video/mp4"
    path = ended(client, hand, output, media) if is_inline else ended_large(client, hand, folder, output, media)
    whole = client.get(path)
    assert (whole.status_code, whole.content, whole.headers["accept-ranges"]) == (200, output, "bytes")
    tag = whole.headers["etag"]
    for header, start, end in ((f"bytes={size - 50}-", size - 50, size), ("bytes=10-19", 10, 20), ("bytes=-3", size - 3, size)):
        answer = client.get(path, headers={"range": header, "if-range": tag})
        assert (answer.status_code, answer.content) == (206, output[start:end])
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
    assert client.get(path, headers={"range": "bytes=0-1", "if-range": '"another"'}).content == output
    assert client.get(path, headers={"range": "bytes=0-1,4-5"}).content == output
    head = client.head(path)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(size), b"")
    known = client.get(path, headers={"if-none-match": tag})
    assert (known.status_code, known.content, known.headers["etag"]) == (304, b"", tag)
    refused = client.get(path, headers={"range": f"bytes={size}-"})
    assert (refused.status_code, refused.json()["code"]) == (416, "range_not_satisfiable")
    assert refused.headers["content-range"] == f"bytes */{size}"


@pytest.mark.parametrize("is_large", [False, True], ids=["in the record", "in a blob"])
def test_an_output_of_several_files_is_json_with_links_or_one_form(
    client: GatewayClient, hand: Hand, folder: Path, is_large: bool
) -> None:
    film = Media(LARGE if is_large else b"film", "video/mp4", "film.mp4")
    media, output = encode({"title": "cat", "files": [Media(b"PNG", "image/png"), film]})
    path = ended_large(client, hand, folder, output, media) if is_large else ended(client, hand, output, media)
    answer = client.get(path)
    image, link = answer.json()["files"]
    assert (answer.headers["content-type"], answer.json()["title"]) == ("application/json", "cat")
    assert image == {"$media": 0, "content_type": "image/png", "url": f"{path}/parts/0"}
    assert link == {"$media": 1, "content_type": "video/mp4", "filename": "film.mp4", "url": f"{path}/parts/1"}
    assert client.get(image["url"]).content == b"PNG"
    part = client.get(link["url"])
    assert (part.content, part.headers["content-type"]) == (film.data, "video/mp4")
    assert part.headers["content-disposition"] == 'inline; filename="film.mp4"'
    ranged = client.get(link["url"], headers={"range": "bytes=-2"})
    assert (ranged.status_code, ranged.content) == (206, bytes(film.data[-2:]))
    missing = client.get(f"{path}/parts/2")
    assert (missing.status_code, "has 2 files" in missing.json()["detail"]) == (404, True)
    form = client.get(path, headers={"accept": "multipart/form-data"})
    result, first, second = multipart_parts(form.content, form.headers["content-type"])
    assert json.loads(result.data) == answer.json()
    assert (first.data, second.data, second.filename) == (b"PNG", film.data, "film.mp4")
    mixed = client.get(path, headers={"accept": "multipart/mixed"})
    head = f"content-type: {mixed.headers['content-type']}\r\n\r\n".encode()
    parts: Any = message_from_bytes(head + mixed.content).get_payload()
    assert [part.get_content_type() for part in parts] == ["application/json", "image/png", "video/mp4"]
    assert [part.get_filename() for part in parts] == [None, "0", "film.mp4"]
    assert json.loads(parts[0].get_payload()) == answer.json()
    assert film.data in mixed.content
    assert len({each.headers["etag"] for each in (answer, part, form, mixed)}) == 4
    assert answer.headers["vary"] == form.headers["vary"] == "accept"


def test_the_page_of_a_job_offers_each_file_to_be_saved(client: GatewayClient, hand: Hand, folder: Path) -> None:
    film = Media(LARGE, "text/html", "film.html")
    media, output = encode({"title": "<cat>", "files": [Media(b"PNG", "image/png"), film]})
    job = ended_large(client, hand, folder, output, media).split("/")[3]
    page = client.get(f"/ui/jobs/{job}").text
    assert "&lt;cat&gt;" in page
    assert f'href="/ui/jobs/{job}/output?file=1" download' in page
    for file, name, content in ((0, f"{job}.0", b"PNG"), (1, "film.html", LARGE)):
        answer = client.get(f"/ui/jobs/{job}/output", params={"file": file})
        assert (answer.content, answer.headers["content-type"]) == (content, "application/octet-stream")
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        assert answer.headers["content-security-policy"] == "sandbox"
    assert client.get(f"/ui/jobs/{job}/output").json()["title"] == "<cat>"
    assert client.get(f"/ui/jobs/{job}/output", params={"file": 2}).status_code == 404


def test_an_output_that_is_one_value_has_no_parts_and_a_job_that_goes_on_has_none_yet(
    client: GatewayClient, hand: Hand
) -> None:
    assert client.get(f"{ended(client, hand, b'{}', 'application/json')}/parts/0").status_code == 404
    job = client.post("/v1/models/square/jobs", json={"x": 4}).json()
    assert client.get(f"{job['links']['result']}/parts/0").status_code == 202
    hand.finish(hand.take())


def test_readers_that_do_not_read_on_take_no_place_of_others(
    redis_url: str, client: GatewayClient, hand: Hand, folder: Path
) -> None:
    path = ended_large(client, hand, folder, LARGE, "video/mp4")
    large = next((folder / "blobs").rglob(f"{path.split('/')[3].partition('-')[0]}*.out"))
    os.truncate(large, 100 * MIB)  # more than the buffers of a connection take
    with gateway_process(redis_url, folder, models=MODELS, max_requests=3) as small, ExitStack() as readers:
        for _ in range(6):
            reader = readers.enter_context(socket.create_connection((small.base_url.host, small.base_url.port)))
            reader.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert reader.recv(12) == b"HTTP/1.1 200"
        assert small.get("/v1/models").status_code == 200


def test_who_reads_a_large_answer_has_a_place_of_those_that_wait_and_gives_it_back(
    redis_url: str, client: GatewayClient, hand: Hand, folder: Path
) -> None:
    waiting = client.post("/v1/models/square/jobs", json={"x": 4}).json()
    held = hand.take()
    events = {"url": waiting["links"]["events"], "headers": {"accept": "text/event-stream"}}
    with gateway_process(redis_url, folder, models=MODELS, max_predictions=1, max_waits=1) as small:
        with socket.create_connection((small.base_url.host, small.base_url.port)) as reader:
            head = "POST /predictions/square HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            reader.sendall(f'{head}content-length: 8\r\n\r\n{{"x": 4}}'.encode())
            finish_large(hand, hand.take(), folder, LARGE, "video/mp4", size=100 * MIB)
            assert reader.recv(12) == b"HTTP/1.1 200"
            with hand.serving():
                assert small.post("/predictions/square", json={"x": 4}).status_code == 200
            with small.stream("GET", **events) as refused:
                assert (refused.status_code, "gateway.max_waits" in refused.read().decode()) == (503, True)
        eventually(lambda: _is_open(small, events))
    hand.finish(held)


def _is_open(client: GatewayClient, request: dict[str, Any]) -> bool:
    with client.stream("GET", **request) as answer:
        return answer.status_code == 200


def test_a_large_answer_is_never_in_the_gateways_memory_as_a_whole(client: GatewayClient, hand: Hand, folder: Path) -> None:
    size = 400 * MIB
    path = ended_large(client, hand, folder, LARGE, "video/mp4")
    large = next((folder / "blobs").rglob(f"{path.split('/')[3].partition('-')[0]}*.out"))
    os.truncate(large, size)  # a sparse file: the disk keeps the first 3 MiB only
    gateway = psutil.Process(client.process.pid)
    before, received = gateway.memory_info().rss, 0
    with client.stream("GET", path) as answer:
        assert answer.headers["content-length"] == str(size)
        for chunk in answer.iter_raw():
            received += len(chunk)
    assert received == size
    assert gateway.memory_info().rss - before < size // 4
    large.unlink()
    assert client.get(path).status_code == 410
