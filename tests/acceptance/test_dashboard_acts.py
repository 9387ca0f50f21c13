"""What operators do on the pages, the form that tries a model, outputs as what they are, and findings of axe."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.acceptance.browser import Watched, watched
from tests.acceptance.dashboard_stack import NOWHERE, DashboardStack, dashboard_stack
from tests.eventually import eventually
from tests.security.keyed import ALICE, BOSS, PAGES, READER

AXE = (Path(__file__).parent / "axe.min.js").read_text("utf-8")
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter((found) => ['serious', 'critical'].includes(found.impact))
  .map((found) => `${found.id}: ${found.nodes.map((node) => node.target.join(' ')).join(', ')}`)"""
TABS_OUTSIDE = """[...document.querySelectorAll('.top nav a')]
  .filter((tab) => tab.getBoundingClientRect().right > innerWidth || tab.getBoundingClientRect().left < 0)
  .map((tab) => tab.textContent)"""
# Two times two pixels.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP8z8DAwMDAxMDAwMDAAAANHQEDasKb6QAAAABJRU5ErkJggg=="
)

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
# Below the dashboard, and no pages: parts of one, downloads, and what a script or an image reads.
PARTS = {
    *("/ui/live", "/ui/history", "/ui/models/{model}/errors", "/ui/openapi.json", "/ui/static/{name}", "/ui/failed/export"),
    *("/ui/jobs/{job_id}/input", "/ui/jobs/{job_id}/output", "/ui/runs/{run_id}/output", "/ui/runs/{run_id}/errors"),
}
# One pixel each.
GIF = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
WEBP = "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA=="


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardStack]:
    with dashboard_stack(tmp_path_factory.mktemp("acts"), "shapes", "kinds") as stack:
        yield stack


@pytest.fixture(scope="module")
def screen(stack: DashboardStack) -> Iterator[Watched]:
    with watched(stack.browser, stack.url) as watch:
        yield watch


@pytest.fixture
def page(screen: Watched, stack: DashboardStack) -> Iterator[Page]:
    yield screen.page
    screen.page.goto("about:blank")
    screen.page.emulate_media(color_scheme="light")
    stack.gateway.post("/v1/models/moody/resume")
    screen.check(stack.url)


def test_a_model_is_paused_and_purged_and_resumed_on_its_page_and_the_log_has_it(stack: DashboardStack, page: Page) -> None:
    page.goto("/ui/models/moody")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#operate .banner")).to_contain_text("paused")
    expect(page.locator(".title .chip")).to_have_text("paused")
    eventually(lambda: stack.gateway.get("/v1/models/moody/rollout").json()["paused"] == {"followed": True})
    jobs = stack.submit(*range(30))
    page.get_by_role("button", name="Purge the queue").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel them all").click()
    expect(page.locator("#purged")).to_contain_text("30 waiting jobs cancelled.")
    assert {stack.job(job)["status"] for job in jobs} == {"cancelled"}
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#operate .banner")).to_have_count(0)
    page.get_by_text("Slots and limits").click()
    page.get_by_label("max_queue_depth").fill("77")
    page.get_by_role("button", name="Change limits").click()
    expect(page.get_by_label("max_queue_depth")).to_have_attribute("placeholder", "77")
    page.goto("/ui/audit")
    acts = page.locator("tbody [data-label=Act]").all_inner_texts()
    assert [act.strip() for act in acts[:4]] == ["change limits", "resume", "purge", "pause"]
    expect(page.locator("tbody tr").first).to_contain_text("max_queue_depth 77")
    expect(page.locator("tbody .chip").first).to_have_text("done")


def test_a_worker_is_drained_and_resumed_on_its_page(stack: DashboardStack, page: Page) -> None:
    page.goto("/ui/workers")
    page.get_by_role("button", name="Drain").click()
    expect(page.locator(".banner")).to_contain_text("holds none")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".banner")).to_have_count(0)


def test_one_failed_job_is_dismissed_then_all_and_they_are_exported_before(stack: DashboardStack, page: Page) -> None:
    jobs = stack.failed(3)
    page.goto("/ui/failed")
    with page.expect_download() as saving:
        page.get_by_role("link", name="Export as JSON Lines").click()
    lines = [json.loads(line) for line in Path(saving.value.path()).read_text().splitlines()]
    assert {line["id"] for line in lines} == set(jobs)
    assert {(line["fault"], line["error"]["code"]) for line in lines} == {("model", "handler_error")}
    page.get_by_role("button", name="Dismiss the newest").click()
    expect(page.locator(".big")).to_have_text("2")
    page.get_by_role("button", name="Dismiss all", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Dismiss all").click()
    expect(page.locator("h2").first).to_have_text("No failed jobs are kept")
    # Regression: "Nothing failed" stood there a minute after a failed prediction, whose record was collected.
    expect(page.locator(".empty")).to_contain_text("sync_result_ttl_s")


def test_callers_inputs_stand_apart_and_the_models_page_shows_errors_by_group(stack: DashboardStack, page: Page) -> None:
    stack.failed(2)
    page.goto("/ui/failed?fault=caller")
    expect(page.locator(".group")).to_have_count(0)
    page.goto("/ui/models/moody")
    expect(page.locator("#errors strong")).to_have_text("2")
    expect(page.locator("#errors")).to_contain_text("item -N is <b onmouseover")
    page.get_by_text("Newest traceback").click()
    expect(page.locator("#errors pre")).to_contain_text("raise ValueError")


def test_the_inbox_is_dismissed_and_replayed_over_http_too(stack: DashboardStack) -> None:
    stack.gateway.post("/v1/failed:dismiss", json={"model": "moody"})
    jobs = stack.failed(3)
    found = [json.loads(line) for line in stack.gateway.get("/v1/failed").text.splitlines()]
    assert [one["id"] for one in found] == jobs[::-1]
    assert stack.gateway.post("/v1/failed:dismiss", json={"ids": jobs[:1]}).json() == {"done": 1, "has_more": False}
    body = {"model": "moody", "group": found[0]["group"], "version": "1"}
    assert stack.gateway.post("/v1/failed:replay", json=body).json() == {"done": 2, "has_more": False}
    assert "replayed_as" not in stack.job(jobs[0])
    assert "replayed_as" in stack.job(jobs[1])
    assert stack.gateway.get("/v1/failed?model=nothing").status_code == 404
    for bad in ({}, {"ids": "x"}, {"model": 3}, {"group": "x"}, {"model": "moody", "more": "x"}):
        assert stack.gateway.post("/v1/failed:dismiss", json=bad).status_code == 400


def test_a_model_is_tried_with_a_form_and_the_printed_commands_do_the_same(stack: DashboardStack, page: Page) -> None:
    page.goto("/ui/models/shapes/try/1")
    page.get_by_label("image").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": PNG})
    page.get_by_label("label").fill("two")
    page.get_by_role("button", name="Run it").click()
    page.wait_for_url("**/ui/jobs/*")
    expect(page.locator(".title .chip").first).to_have_text("succeeded")
    expect(page.get_by_role("region", name="Output as a table")).to_contain_text("two")
    page.goto("/ui/models/shapes/try/1")
    (stack.folder / "FILE").write_bytes(PNG)
    curl, python = page.get_by_label("Command").all_inner_texts()
    done = subprocess.run(shlex.split(curl), cwd=stack.folder, capture_output=True, check=True, timeout=60.0)
    assert json.loads(done.stdout)[0]["bytes"] == len(PNG)
    ran = subprocess.run([sys.executable, "-c", python], cwd=stack.folder, capture_output=True, check=True, timeout=60.0)
    assert f"'bytes': {len(PNG)}" in ran.stdout.decode()
    page.goto("/ui/models/moody/try/1")
    curl, _ = page.get_by_label("Command").all_inner_texts()
    done = subprocess.run(shlex.split(curl), cwd=stack.folder, capture_output=True, check=True, timeout=60.0)
    assert json.loads(done.stdout) == {"square": 16}


def test_outputs_are_shown_as_what_they_are_and_nothing_of_a_job_runs(stack: DashboardStack, page: Page) -> None:
    def output(kind: str) -> str:
        job = stack.gateway.post("/v1/models/kinds/jobs", json=kind).json()["id"]
        eventually(lambda: stack.job(job)["status"] == "succeeded")
        return str(job)

    page.goto(f"/ui/jobs/{output('tree')}")
    tree = page.get_by_role("region", name="Output as a tree")
    expect(tree).to_contain_text("<script>alert(1)</script>")
    tree.get_by_text("deep").click()
    expect(tree.get_by_text("list").first).to_be_visible()
    page.goto(f"/ui/jobs/{output('audio')}")
    player = page.locator("audio")
    assert (
        page.evaluate("async (url) => (await fetch(url)).headers.get('content-type')", player.get_attribute("src"))
        == "audio/wav"
    )
    page.goto(f"/ui/jobs/{output('image')}")
    picture = page.get_by_alt_text("Output of the job")
    eventually(lambda: picture.evaluate("(node) => node.complete && node.naturalWidth") == 400)
    for tiny in (GIF, WEBP):
        page.goto(f"/ui/jobs/{output(f'base64:{tiny}')}")
        eventually(lambda: picture.evaluate("(node) => node.complete && node.naturalWidth") == 1)
    html = output("html")
    page.goto(f"/ui/jobs/{html}")
    expect(page.get_by_label("Output", exact=True)).to_contain_text("<script>")
    answer = stack.gateway.get(f"/ui/jobs/{html}/output?shown=1")
    assert answer.status_code == 415
    shown = stack.gateway.get(f"/ui/jobs/{output('audio')}/output?shown=1").headers
    assert shown["x-content-type-options"] == "nosniff"
    assert "sandbox" in shown["content-security-policy"]


def test_arrays_are_shown_as_tables_of_their_values(stack: DashboardStack, page: Page) -> None:
    array = {"name": "input", "datatype": "INT64", "shape": [1], "data": [-5]}
    job = stack.gateway.post("/v2/models/moody/infer", json={"inputs": [array]}).json()["job"]
    page.goto(f"/ui/jobs/{job}")
    expect(page.locator("h3")).to_have_text("input INT64, 1")
    expect(page.get_by_role("region", name="Input, input as a table").locator("td")).to_have_text(["-5"])


def run_route(page: Page, path: str, **parameters: str) -> Locator:
    """Send a GET with Swagger UI; the row of its answer."""
    route = page.locator(".opblock-get").filter(has=page.locator(f"[data-path='{path}']"))
    if route.count() == 0:
        page.locator("[data-tag='queues'] .expand-operation").click()
        route.locator(".opblock-summary-control").click()
        route.get_by_role("button", name="Try it out").click()
    for name, value in parameters.items():
        route.get_by_role("textbox", name=name).fill(value)
    route.get_by_role("button", name="Execute").click()
    return route.locator(".live-responses-table .response")


def test_swagger_ui_lists_every_route_and_sends_what_is_tried(stack: DashboardStack, page: Page) -> None:
    page.goto("/ui/api")
    page.get_by_role("link", name="Try the routes in Swagger UI").click()
    document = stack.gateway.get("/openapi.json").json()
    assert document["paths"].keys() >= {"/v1/jobs", "/predictions/moody"}
    tags = Counter(operation["tags"][0] for item in document["paths"].values() for operation in item.values())
    expect(page.locator(".opblock-tag")).to_have_count(len(tags))
    for tag, count in tags.items():
        section = page.locator(".opblock-tag-section", has=page.locator(f"[data-tag='{tag}']"))
        section.locator("button.expand-operation").click()
        expect(section.locator(".opblock")).to_have_count(count)
        section.locator("button.expand-operation").click()
    answer = run_route(page, "/v1/queues/{model}", model="moody")
    expect(answer.locator(".response-col_status")).to_contain_text("200")
    expect(answer).to_contain_text('"model": "moody"')


def test_swagger_ui_of_a_gateway_with_keys_sends_the_key_that_it_is_given(stack: DashboardStack) -> None:
    with watched(stack.browser, str(stack.keyed.base_url)) as watch:
        page = watch.page
        page.goto("/penstock/docs")
        page.get_by_label("API key").fill(f"reader.{READER.secret}")
        page.keyboard.press("Enter")
        expect(run_route(page, "/v1/queues").locator(".response-col_status")).to_contain_text("401")
        watch.errors.clear()
        page.get_by_role("button", name="Authorize").click()
        page.get_by_role("textbox", name="auth-bearer-value").fill(f"reader.{READER.secret}")
        page.get_by_role("button", name="Apply credentials").click()
        page.get_by_role("button", name="Close").click()
        answer = run_route(page, "/v1/queues")
        expect(answer.locator(".response-col_status")).to_contain_text("200")
        expect(answer).to_contain_text('"model": "moody"')
        assert READER.secret not in json.dumps(page.context.storage_state())
        assert {path for path in watch.paths if not path.startswith("/penstock/")} == set()


def page_addresses(stack: DashboardStack) -> dict[str, list[str]]:
    """Addresses of every page that can be opened, by its route, with something to show on each."""
    [failed] = stack.failed(1)
    tree = stack.gateway.post("/v1/models/kinds/jobs", json="tree").json()["id"]
    eventually(lambda: stack.job(tree)["status"] == "succeeded")
    array = {"name": "input", "datatype": "INT64", "shape": [1], "data": [-5]}
    arrays = stack.gateway.post("/v2/models/moody/infer", json={"inputs": [array]}).json()["job"]
    file = stack.gateway.post("/v1/files", files={"file": ("in.jsonl", b'{"input": 1}\n')}, data={"purpose": "batch"}).json()
    run = stack.gateway.post("/v1/runs", json={"model": "moody", "input": file["id"]}).json()["id"]
    stack.keyed.post("/v1/models/moody/jobs", json=1, params={"webhook": NOWHERE}, headers=ALICE.header).raise_for_status()
    eventually(lambda: stack.keyed.get("/v1/webhooks/undelivered", headers=BOSS.header).json()["data"], timeout_s=30.0)
    stack.gateway.post("/v1/models/kinds/pause")
    plain = ("/", "/docs", "/ui/api", "/ui/audit", "/ui/failed", "/ui/jobs", "/ui/runs", "/ui/webhooks", "/ui/workers")
    return {
        **{path: [path] for path in plain},
        "/ui/jobs/{job_id}": [f"/ui/jobs/{job}" for job in (failed, tree, arrays)],
        "/ui/runs/{run_id}": [f"/ui/runs/{run}"],
        "/ui/models/{model}": ["/ui/models/moody", "/ui/models/kinds"],
        "/ui/models/{model}/try/{version}": ["/ui/models/shapes/try/1"],
        "/ui/nothing": ["/ui/nothing"],
    }


def findings(page: Page, path: str) -> list[str]:
    """What is wrong with a page on a phone and on a desk, in light and in dark."""
    page.goto(f"/penstock{path}")
    if path == "/docs":
        run_route(page, "/v1/queues")
    page.evaluate(AXE)
    found = []
    for width, scheme in itertools.product((360, 1_100), SCHEMES):
        page.set_viewport_size({"width": width, "height": 740})
        page.emulate_media(color_scheme=scheme)
        if path == "/docs":
            expect(page.locator("html.dark-mode")).to_have_count(int(scheme == "dark"))
        found += [f"{path} {width} {scheme}: {line}" for line in page.evaluate(SERIOUS)]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found.append(f"{path} {width}: scrolls sideways")
        # Regression: the last tabs were cut off, and only who swiped over them saw that there are more.
        found += [f"{path} {width}: the tab {tab} is cut off" for tab in page.evaluate(TABS_OUTSIDE)]
        # Regression: the list of jobs was 11,000 pixels tall, 440 for each row. Rows of long errors take more than others.
        height = page.evaluate("document.documentElement.scrollHeight")
        if path == "/ui/jobs" and height > 1_000 + 260 * page.locator("tbody tr").count():
            found.append(f"{path} {width}: is too tall")
    return found


def test_every_page_fits_a_phone_and_has_no_serious_finding_of_axe_in_light_or_dark(stack: DashboardStack) -> None:
    assert hashlib.sha256(AXE.encode()).hexdigest() in (Path(__file__).parent / "axe.README.md").read_text()
    addresses = page_addresses(stack)
    opened = {path for method, path in PAGES if method == "GET"} - PARTS
    assert opened | {"/ui/nothing"} == addresses.keys() | {"/ui/login"}
    # Colors that are still changing would be measured.
    with watched(stack.browser, str(stack.keyed.base_url), reduced_motion="reduce") as watch:
        found = findings(watch.page, "/ui/login")
        watch.page.get_by_label("API key").fill(f"boss.{BOSS.secret}")
        watch.page.keyboard.press("Enter")
        expect(watch.page.get_by_role("heading", name="Queues")).to_be_visible()
        for path in itertools.chain.from_iterable(addresses.values()):
            found += findings(watch.page, path)
        # The page that does not exist, and the route that Swagger UI calls without a key.
        watch.errors = [error for error in watch.errors if "404" not in error and "401" not in error]
    stack.gateway.post("/v1/models/kinds/resume")
    assert found == []
