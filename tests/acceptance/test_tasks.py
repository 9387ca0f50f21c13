"""Built-in tasks as a caller sees them: `penstock up` serves model files without code of the user's."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest

from tests.acceptance.test_cli import stopped
from tests.acceptance.warm_up import started
from tests.unit.handlers.tasks.models import bright_words, mean_colour, picture, plain, states, tokenizer

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers", reason="text tasks need the tokenizers library: pip install tokenizers")

SETTINGS = """
[models.colour]
source = "colour.onnx"
task = "image-classification"
max_batch_size = 8
threads = 2
options = { labels = "names.txt", top_k = 2, mean = [0.0], std = [1.0] }
input_urls = ["PICTURES/"]

[models.meaning]
source = "states.onnx"
task = "text-embedding"
options = { normalize = false }

[models.words]
source = "words.onnx"
task = "text-classification"
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a picture."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "green.png").write_bytes(plain((0, 255, 51)))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def client(pictures: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("tasks")
    mean_colour(folder)
    states(folder)
    bright_words(folder)
    tokenizer(folder)
    (folder / "names.txt").write_text("red\ngreen\nblue\n")
    (folder / "penstock.toml").write_text(SETTINGS.replace("PICTURES", pictures))
    up = started(folder)
    with httpx2.Client(base_url=up.ready["url"], timeout=60.0) as client:
        yield client
    assert stopped(up) == 0, (folder / "up.log").read_text()


def classify(client: httpx2.Client, data: bytes, media: str = "image/png") -> httpx2.Response:
    return client.post("/predictions/colour", content=data, headers={"content-type": media})


def test_an_image_is_classified_however_it_is_sent(client: httpx2.Client) -> None:
    data = plain((0, 255, 51))
    answer = classify(client, data)
    assert (answer.status_code, list(answer.json())) == (200, ["green", "blue"]), answer.text
    jpeg = picture(np.full((64, 64, 3), (0, 255, 51)), form="JPEG")
    assert list(classify(client, jpeg, "image/jpeg").json()) == ["green", "blue"]
    # `curl -T` sends no Content-Type.
    assert client.post("/predictions/colour", content=data).json() == answer.json()
    assert client.post("/predictions/colour", files={"data": ("x.png", data)}).json() == answer.json()
    assert client.post("/predictions/colour", json={"image": base64.b64encode(data).decode()}).json() == answer.json()


def test_an_image_may_be_a_field_of_a_form_and_stand_at_a_url(client: httpx2.Client, pictures: str) -> None:
    data, url, path = plain((0, 255, 51)), f"{pictures}/green.png", "/predictions/colour"
    answer = classify(client, data).json()
    assert client.post(path, files={"image": ("x.png", data, "image/png")}).json() == answer
    assert client.post(path, files={"image": (None, base64.b64encode(data))}).json() == answer
    ways: list[dict[str, Any]] = [{"json": {"image": url}}, {"json": url}, {"files": {"image": (None, url)}}]
    for given in ways:
        assert client.post(path, **given).json() == answer
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"files": {"image": ("x.png", data), "colour": (None, "red")}}, "'colour': the model has no such field"),
        ({"files": {"image": ("x.txt", b"x", "text/plain")}}, "not valid base64"),
        ({"json": {"image": f"{pictures}/red.png"}}, "answers 404"),
        ({"json": {"image": "https://elsewhere.example/a.png"}}, "do not allow the URL"),
        ({"json": {"picture": "x"}}, ""),
    ]
    for given, said in wrong:
        refused = client.post(path, **given)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
        assert said in refused.json()["detail"], refused.text


def test_a_bomb_is_refused_without_being_unpacked_and_its_neighbours_succeed(client: httpx2.Client) -> None:
    # The image has 64 million pixels in 63 KB: 64 MB when unpacked, and 192 MB as RGB.
    bomb = picture(np.zeros((8_000, 8_000)))
    assert len(bomb) < 100_000
    assert classify(client, plain((255, 0, 0))).status_code == 200
    before = peak_bytes(client)
    sent = [plain((255, 0, 0)), bomb, plain((0, 0, 255)), b"no image at all", bomb]
    with ThreadPoolExecutor(len(sent)) as pool:
        answers = list(pool.map(lambda data: classify(client, data), sent))
    assert [answer.status_code for answer in answers] == [200, 422, 200, 422, 422]
    assert "8000 x 8000 pixels; the limit is 50000000" in answers[1].json()["detail"]
    assert [next(iter(answers[place].json())) for place in (0, 2)] == ["red", "blue"]
    assert peak_bytes(client) - before < 40_000_000


def peak_bytes(client: httpx2.Client) -> int:
    """The peak resident memory of the image model's child process."""
    slots = [slot for worker in client.get("/v1/workers").json()["data"] for slot in worker["slots"]]
    (pid,) = [slot["pid"] for slot in slots if slot["model"] == "colour"]
    assert psutil.pid_exists(pid)
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def test_texts_of_any_length_get_their_own_vectors(client: httpx2.Client) -> None:
    texts = ["red", "red green", "blue " * 40, "green"]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: client.post("/predictions/meaning", json=text).json(), texts))
    assert answers == [[2.0, 1.0], [2.5, 1.0], [4.0, 1.0], [3.0, 1.0]]
    plain_text = client.post("/predictions/meaning", content=b"red", headers={"content-type": "text/plain"})
    assert plain_text.json() == [2.0, 1.0]


def test_the_schemas_of_a_task_are_known_to_the_gateway(client: httpx2.Client) -> None:
    refused = client.post("/predictions/colour", json={"picture": "x"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input")
    model = client.get("/v1/models/colour").json()
    assert "image/*" in str(model)
    assert "Classifies an image" in str(model)


def test_an_explanation_is_asked_for_like_a_prediction_and_refused_where_there_is_none(client: httpx2.Client) -> None:
    refused = client.post("/explanations/colour", content=plain((255, 0, 0)))
    assert (refused.status_code, refused.json()["code"]) == (501, "not_explainable"), refused.text
    assert refused.headers["x-should-retry"] == "false"
    assert client.post("/explanations/nothing", content=b"x").status_code == 404
    pytest.importorskip("captum", reason="explanations need captum: pip install 'penstock-inference[explain]'")
    told = client.post("/explanations/words/1", json="red the").json()
    assert (told["label"], told["tokens"]) == ("1", ["red", "the"])
    assert told["importances"][1] > told["importances"][0] > 0
