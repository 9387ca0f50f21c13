"""What an item is given: fields and files of forms, through HTTP, the public client and the command."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest
from PIL import Image

from penstock import Client, File
from penstock.errors import InvalidInput
from tests.acceptance.test_cli import ROOT, Up, stopped
from tests.acceptance.warm_up import started

GIVEN = ROOT / "tests" / "handlers" / "given.py"
PNG = b"\x89PNG" * 100
# Above the size that is stored inline, so that this one travels as a blob.
LARGE = b"\x89PNG" * 50_000


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of files."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "cat.png").write_bytes(PNG)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def up(pictures: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("given")
    (folder / "penstock.toml").write_text(
        f'[models.ordered]\nsource = "{GIVEN}:ordered"\n[models.measured]\nsource = "{GIVEN}:measured"\n'
        f'[models.fetched]\nsource = "{GIVEN}:fetched"\ninput_urls = ["{pictures}/"]\n'
        f'[models.annotate]\nsource = "{ROOT}/examples/annotate.py"\n[models.annotate.versions.again]\n'
        f'[models.annotate.versions.plain]\nsource = "{GIVEN}:measured"\n'
        f'[models.asked]\nsource = "{GIVEN}:asked"\nrequest_headers = ["X-Tenant", "x-zone"]\nquery = ["language"]\n'
        f'[models.asked.versions.deaf]\nsource = "{GIVEN}:doubled"\nrequest_headers = []\nquery = []\n'
    )
    (folder / "cat.png").write_bytes(PNG)
    running = started(folder)
    yield running
    assert stopped(running) == 0


@pytest.fixture
def http(up: Up) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=up.ready["url"], timeout=60.0) as client:
        yield client


def answer(image: bytes, **others: Any) -> dict[str, Any]:
    return {"image": [len(image), "image/png", "cat.png"], "threshold": 0.5, "title": "", "more": [], **others}


@pytest.mark.parametrize("image", [PNG, LARGE], ids=["inline", "blob"])
def test_a_form_of_fields_and_files_is_one_input(http: httpx2.Client, image: bytes) -> None:
    files: list[Any] = [
        ("image", ("cat.png", image, "image/png")),
        ("more", ("a.txt", b"a", "text/plain")),
        ("more", ("b", b"bb")),
    ]
    found = http.post("/predictions/ordered", data={"threshold": "0.75", "title": "7"}, files=files)
    more = [[1, "text/plain", "a.txt"], [2, "application/octet-stream", "b"]]
    assert found.json() == answer(image, threshold=0.75, title="7", more=more)


def test_the_same_input_is_json_with_base64_or_a_data_url(http: httpx2.Client) -> None:
    text = base64.b64encode(PNG).decode()
    for given in (text, f"data:image/png;name=cat.png;base64,{text}"):
        found = http.post("/predictions/ordered", json={"image": given, "threshold": 0.75}).json()
        assert (found["image"][0], found["threshold"]) == (len(PNG), 0.75)


@pytest.mark.parametrize("route", ["/predictions/{}", "/v1/models/{}/jobs"])
@pytest.mark.parametrize(
    ("model", "name", "more"),
    [
        ("ordered", "colour", {"data": {"colour": "red"}}),
        ("ordered", "second", {"files": [("second", ("b.png", b"x", "image/png"))]}),
        ("measured", "note", {"data": {"note": "hi"}}),
        ("measured", "second", {"files": [("second", ("b.png", b"x", "image/png"))]}),
    ],
)
def test_an_undeclared_field_or_file_is_a_422_that_names_it(
    http: httpx2.Client, route: str, model: str, name: str, more: dict[str, Any]
) -> None:
    files = [("image", ("cat.png", PNG, "image/png")), *more.get("files", [])]
    found = http.post(route.format(model), data=more.get("data"), files=files)
    assert (found.status_code, found.json()["code"]) == (422, "invalid_input")
    assert [fault["pointer"] for fault in found.json()["errors"]] == [f"/{name}"]
    assert repr(name) in found.json()["detail"]


def test_a_model_of_bytes_still_takes_one_file(http: httpx2.Client) -> None:
    assert http.post("/predictions/measured", files={"any": ("cat.png", PNG, "image/png")}).json() == len(PNG)


def test_a_repeat_with_another_boundary_finds_the_first_job(http: httpx2.Client) -> None:
    sent = [
        http.post(
            "/v1/models/ordered/jobs",
            files={"image": ("cat.png", PNG, "image/png")},
            data={"threshold": "0.1"},
            headers={"idempotency-key": "form-1"},
        )
        for _ in range(2)
    ]
    assert sent[0].request.headers["content-type"] != sent[1].request.headers["content-type"]
    assert sent[0].json()["id"] == sent[1].json()["id"]


def test_a_file_may_be_a_url_where_the_settings_allow_its_host(http: httpx2.Client, pictures: str) -> None:
    known = [len(PNG), "image/png", "cat.png"]
    assert http.post("/predictions/fetched", json={"image": f"{pictures}/cat.png"}).json() == known
    assert http.post("/predictions/fetched", files={"image": (None, f"{pictures}/cat.png")}).json() == known
    for url, said in ((f"{pictures}/dog.png", "answers 404"), ("https://elsewhere.example/cat.png", "do not allow the URL")):
        found = http.post("/predictions/fetched", json={"image": url})
        assert (found.status_code, found.json()["code"], said in found.json()["detail"]) == (422, "invalid_input", True)
    found = http.post("/predictions/ordered", json={"image": f"{pictures}/cat.png"})
    assert (found.status_code, "not fetched from URLs here" in found.json()["detail"]) == (422, True)


def test_a_handler_is_told_of_the_job_and_of_the_headers_and_parameters_that_its_settings_name(http: httpx2.Client) -> None:
    headers = {"X-TENANT": "blue", "x-other": "secret", "authorization": "Bearer a.b", "cookie": "c=d"}
    found = http.post("/predictions/asked?language=de&deadline_s=30", json=4, headers=headers)
    job = found.headers["x-penstock-job"]
    said = [1, "interactive", "", {"x-tenant": "blue"}, {"language": "de"}]
    assert found.json() == {"input": 4, "job": job, "said": said, "has_time": True}


def test_a_job_of_many_and_a_submit_without_any_are_told_what_there_is(http: httpx2.Client) -> None:
    many = "/v1/models/asked/jobs:batch?language=de&priority=bulk"
    [job] = http.post(many, json=[5], headers={"x-zone": "north"}).json()["data"]
    result = http.get(job["links"]["result"], params={"wait": "30"}).json()
    assert (result["input"], result["said"]) == (5, [1, "bulk", "", {"x-zone": "north"}, {"language": "de"}])
    for model, name in (("asked", "lang"), ("ordered", "language")):
        refused = http.post(f"/v1/models/{model}/jobs:batch?{name}=de", json=[5])
        assert (refused.status_code, repr(name) in refused.json()["detail"]) == (400, True)
    plain = http.post("/v1/models/asked/jobs?priority=bulk", json=6).json()
    assert http.get(plain["links"]["result"], params={"wait": "30"}).json()["said"] == [1, "bulk", "", {}, {}]


def test_a_parameter_that_no_setting_names_is_refused_and_the_others_are_in_openapi(http: httpx2.Client) -> None:
    for model in ("asked", "ordered"):
        found = http.post(f"/predictions/{model}?lang=de", json=4)
        assert (found.status_code, "'lang'" in found.json()["detail"]) == (400, True)
    operation = http.get("/openapi.json").json()["paths"]["/predictions/asked"]["post"]
    named = {(one["name"], one["in"]) for one in operation["parameters"]}
    assert {("language", "query"), ("x-tenant", "header"), ("x-zone", "header")} <= named


def test_the_same_key_with_another_header_finds_the_first_job(http: httpx2.Client) -> None:
    sent = [
        http.post("/v1/models/asked/jobs", json=7, headers={"idempotency-key": "asked-1", "x-tenant": tenant}).json()["id"]
        for tenant in ("blue", "red")
    ]
    assert sent[0] == sent[1]


def test_the_client_sends_a_dict_with_files_as_a_form(up: Up) -> None:
    with Client(up.ready["url"]) as client:
        path = up.folder / "cat.png"
        assert client.predict("ordered", {"image": path, "threshold": 1, "title": "12"}) == answer(
            PNG, threshold=1.0, title="12"
        )
        more = [File(b"x", "text/csv", "x.csv"), b"yy"]
        job = client.submit("ordered", {"image": File(PNG, "image/png", "cat.png"), "more": more})
        assert job.result(60.0)["more"] == [[1, "text/csv", "x.csv"], [2, "application/octet-stream", "more"]]
        with pytest.raises(InvalidInput, match="colour"):
            client.submit("ordered", {"image": path, "colour": "red"})
        assert client.predict("measured", {"file": path}) == len(PNG)


def test_the_command_sends_a_form(up: Up) -> None:
    done = up.penstock("call", "ordered", "-F", "image=@cat.png", "-F", "threshold=0.25", "-F", "title=a=b")
    assert json.loads(done.stdout) == answer(PNG, threshold=0.25, title="a=b")
    wrong = up.penstock("call", "ordered", "-F", "image=@cat.png", "-F", "colour=red")
    assert (wrong.returncode != 0, "colour" in wrong.stderr) == (True, True)


def test_the_example_draws_a_frame_of_the_color_that_a_field_names(up: Up, http: httpx2.Client) -> None:
    picture = ROOT / "examples" / "digits" / "images" / "0032_5.png"
    done = up.penstock("call", "annotate", "-F", f"image=@{picture}", "-F", "color=red", "-F", "width=1", "-o", "framed.png")
    assert done.returncode == 0, done.stderr
    with Image.open(up.folder / "framed.png") as framed, Image.open(picture) as plain:
        assert (framed.size, framed.getpixel((0, 0))) == (plain.size, (255, 0, 0))
        assert framed.getpixel((2, 2)) == plain.convert("RGB").getpixel((2, 2))
    broken = http.post("/predictions/annotate", files={"image": ("cat.png", b"no image", "image/png")})
    assert (broken.status_code, broken.json()["code"], broken.json()["type"]) == (422, "bad_image", "/problems/invalid_input")
    # A file name with folders once failed the item, because an output's name may have none.
    named = http.post("/predictions/annotate", files={"image": ("pets/cat.png", picture.read_bytes(), "image/png")})
    assert (named.status_code, "framed-cat.png" in named.headers["content-disposition"]) == (200, True)


def replayed(http: httpx2.Client, job: dict[str, Any], version: str = "") -> httpx2.Response:
    assert http.get(job["links"]["result"], params={"wait": "30"}).status_code == 409
    return http.post(f"{job['links']['self']}/replay", params={"version": version} if version else {})


def test_a_form_is_replayed_whole_and_checked_by_the_version_that_gets_it(http: httpx2.Client) -> None:
    form = {"image": ("cat.png", b"no image", "image/png")}
    job = http.post("/v1/models/annotate/jobs", files=form, data={"color": "red"}).json()
    for version in ("", "again"):
        again = replayed(http, job, version)
        result = http.get(again.json()["links"]["result"], params={"wait": "30"})
        assert (again.status_code, result.json()["code"]) == (202, "bad_image")
    refused = replayed(http, job, "plain")
    assert (refused.status_code, [fault["pointer"] for fault in refused.json()["errors"]]) == (422, ["/color"])


def test_an_input_with_headers_is_replayed_by_a_version_that_asks_for_none(http: httpx2.Client) -> None:
    job = http.post("/v1/models/asked/jobs", json=-4, headers={"x-tenant": "blue"}).json()
    again = replayed(http, job, "deaf").json()
    assert http.get(again["links"]["result"], params={"wait": "30"}).json() == -8


def test_a_form_and_an_input_at_once_are_refused(up: Up) -> None:
    for arguments in (("ordered", "{}", "-F", "a=1"), ("ordered",), ("ordered", "-F", "image")):
        assert up.penstock("call", *arguments).returncode == 2


def test_openapi_shows_the_fields_and_files_of_a_form(http: httpx2.Client) -> None:
    document = http.get("/openapi.json").json()
    content = document["paths"]["/predictions/ordered"]["post"]["requestBody"]["content"]
    assert list(content) == ["application/json", "multipart/form-data"]
    schemas = document["components"]["schemas"]

    def image(media: str) -> dict[str, Any]:
        name = content[media]["schema"]["$ref"].rpartition("/")[2]
        found: dict[str, Any] = schemas[name]["$defs"]["Order"]["properties"]["image"]
        return found

    assert image("application/json") == {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}
    assert image("multipart/form-data") == {"type": "string", "format": "binary", "contentMediaType": "image/*"}
    measured = document["paths"]["/predictions/measured"]["post"]["requestBody"]["content"]
    assert list(measured) == ["*/*"]
