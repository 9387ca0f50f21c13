"""What operators do on the pages, the form that tries a model, outputs as what they are, and findings of axe."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.browser import Watched, watched
from tests.acceptance.dashboard_stack import DashboardStack, dashboard_stack
from tests.eventually import eventually

AXE = (Path(__file__).parent / "axe.min.js").read_text("utf-8")
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter((found) => ['serious', 'critical'].includes(found.impact))
  .map((found) => `${found.id}: ${found.nodes.map((node) => node.target.join(' ')).join(', ')}`)"""
# Two times two pixels.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAFklEQVR4nGP8z8DAwMDAxMDAwMDAAAANHQEDasKb6QAAAABJRU5ErkJggg=="
)


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
    expect(page.locator("h2").first).to_have_text("Nothing failed")


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
    html = output("html")
    page.goto(f"/ui/jobs/{html}")
    expect(page.get_by_label("Output", exact=True)).to_contain_text("<script>")
    answer = stack.gateway.get(f"/ui/jobs/{html}/output?shown=1")
    assert answer.status_code == 415
    shown = stack.gateway.get(f"/ui/jobs/{output('audio')}/output?shown=1").headers
    assert shown["x-content-type-options"] == "nosniff"
    assert "sandbox" in shown["content-security-policy"]


def test_no_page_has_a_serious_finding_of_axe_in_light_or_dark(stack: DashboardStack, page: Page) -> None:
    [old] = stack.failed(1)
    tree = stack.gateway.post("/v1/models/kinds/jobs", json="tree").json()["id"]
    eventually(lambda: stack.job(tree)["status"] == "succeeded")
    stack.gateway.post("/v1/models/kinds/pause")
    assert hashlib.sha256(AXE.encode()).hexdigest() in (Path(__file__).parent / "axe.README.md").read_text()
    paths = ["/", "/ui/jobs", f"/ui/jobs/{old}", f"/ui/jobs/{tree}", "/ui/runs", "/ui/failed", "/ui/models/moody"]
    paths += ["/ui/models/kinds", "/ui/models/shapes/try/1", "/ui/workers", "/ui/audit", "/ui/api"]
    found: dict[str, Any] = {}
    for path in paths:
        page.goto(path)
        page.evaluate(AXE)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            if serious := page.evaluate(SERIOUS):
                found[f"{path} {scheme}"] = serious
    stack.gateway.post("/v1/models/kinds/resume")
    assert found == {}
