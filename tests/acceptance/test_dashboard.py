"""The dashboard as people use it: with a real gateway, a real worker and a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, expect

from tests.acceptance.browser import CONTRAST, Watched, watched
from tests.acceptance.dashboard_stack import HELD, DashboardStack, dashboard_stack
from tests.eventually import eventually
from tests.security.keyed import BOSS, READER

PHONE = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}
# A page as it looks after several attempts on workers with long names.
ATTEMPTS = """const main = document.querySelector('main');
  const row = '<tr><td class="num">3</td><td>worker_lost</td><td>worker-a-very-long-host-name.example.internal:4711/0</td>'
    + '<td>2026-11-22 16:37:07</td><td class="num">1 min 12.345 s</td></tr>';
  const head = '<tr><th class="num">Attempt</th><th>Ended</th><th>Worker</th><th>Started</th><th class="num">Took</th></tr>';
  const table = '<table class="plain"><thead>' + head + '</thead><tbody>' + row + row + '</tbody></table>';
  main.insertAdjacentHTML('beforeend', '<section class="card">' + table + '</section>');"""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
TEXTS = "p, h1, h2, td, th, dt, dd, a, button, label, pre, summary, small, .chip, .banner, .code, .message, .muted"


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardStack]:
    with dashboard_stack(tmp_path_factory.mktemp("dashboard")) as stack:
        yield stack


@pytest.fixture(scope="module")
def screen(stack: DashboardStack) -> Iterator[Watched]:
    with watched(stack.browser, stack.url) as watch:
        yield watch


@pytest.fixture(scope="module")
def small_screen(stack: DashboardStack) -> Iterator[Watched]:
    with watched(stack.browser, stack.url, **PHONE) as watch:
        yield watch


def empty(watch: Watched, stack: DashboardStack) -> None:
    """Leave nothing to the next test: a new page for each test costs the browser a process."""
    watch.page.goto("about:blank")
    watch.page.emulate_media(color_scheme="light", reduced_motion="no-preference")
    watch.check(stack.url)


@pytest.fixture
def watch(screen: Watched, stack: DashboardStack) -> Iterator[Watched]:
    yield screen
    empty(screen, stack)


@pytest.fixture
def phone(small_screen: Watched, stack: DashboardStack) -> Iterator[Page]:
    yield small_screen.page
    empty(small_screen, stack)


@pytest.fixture
def page(watch: Watched) -> Page:
    return watch.page


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text) or 0)


def test_the_queues_change_by_themselves_while_jobs_come_and_go(stack: DashboardStack, page: Page) -> None:
    page.goto("/")
    expect(page.locator("#live")).to_have_text("live")
    row = page.locator("tbody tr")
    expect(row.locator("[data-label=Slots]")).to_have_text("1/1")
    # The gateway polls once a second, so the first job does not end before the page has told of it.
    stack.submit(HELD, *range(40))
    waiting = row.locator("[data-label=Waiting]")
    eventually(lambda: number(waiting.inner_text()) > 0)
    expect(row.locator(".chip")).to_have_text("running")
    stack.open()
    expect(waiting).to_have_text("0")
    eventually(lambda: float(row.locator("[data-label='Done /s']").inner_text()) > 0.0)
    expect(row.locator("polyline")).to_have_count(1)
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()


def test_a_job_is_followed_to_its_end_and_tells_where_its_time_went(stack: DashboardStack, page: Page) -> None:
    *_, last = stack.submit(*range(40))
    page.goto(f"/ui/jobs/{last}")
    expect(page.locator(".title .chip").first).to_have_text("succeeded")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert page.locator("svg.timeline rect").count() >= 3
    shares = [float(text.split()[0]) for text in page.locator(".stages td:nth-child(3)").all_inner_texts()]
    assert sum(shares) == pytest.approx(100.0, abs=1.0)
    summary = stack.gateway.get(f"/v1/jobs/{last}/timeline").json()["summary"]
    expect(page.locator(".lead")).to_have_text(f"The job {summary}.")
    expect(page.get_by_label("Output", exact=True)).to_contain_text('"square": 1521')


def test_a_whole_group_of_failed_jobs_is_replayed_in_batches_with_progress(stack: DashboardStack, page: Page) -> None:
    jobs = stack.failed(130)
    page.goto("/ui/failed")
    group = page.locator(".group")
    expect(group).to_have_count(1)
    expect(group.locator(".message")).to_have_text("ValueError: item -N is <b onmouseover=alert()>below</b> zero")
    expect(group.locator(".big")).to_have_text("130")
    group.get_by_role("button", name="Replay all 130").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Replay 130 jobs of moody?")
    dialog.get_by_role("button", name="Not now").click()
    expect(dialog).to_be_hidden()
    group.get_by_role("button", name="Replay all 130").click()
    dialog.get_by_role("button", name="Replay all").click()
    expect(page.locator(".progress")).to_contain_text("130 jobs replayed.", timeout=30_000)
    assert all("replayed_as" in stack.job(id) for id in (jobs[0], jobs[60], jobs[-1]))
    stack.failed(1)
    page.get_by_role("link", name="Refresh the inbox").click()
    expect(page.locator(".big")).to_have_text("131")


def test_one_failed_job_is_replayed_from_its_page_and_the_two_are_linked(stack: DashboardStack, page: Page) -> None:
    [old] = stack.failed(1)
    page.goto(f"/ui/jobs/{old}")
    expect(page.locator(".banner.bad")).to_contain_text("handler_error")
    page.get_by_role("button", name="Replay").first.click()
    page.get_by_role("dialog").get_by_role("button", name="Replay").click()
    expect(page.locator("dl.facts")).to_contain_text("Replay of")
    page.get_by_role("link", name=old).click()
    new = stack.job(old)["replayed_as"]
    expect(page.get_by_role("link", name=new)).to_be_visible()


def test_without_keys_too_a_form_of_another_site_is_refused(stack: DashboardStack) -> None:
    [old] = stack.failed(1)
    for headers in ({}, {"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
        assert stack.gateway.post(f"/ui/jobs/{old}/replay", data={"seen": ""}, headers=headers).status_code == 403
    assert "replayed_as" not in stack.job(old)


def test_everything_is_reached_by_keyboard_and_the_focus_is_seen_and_kept(stack: DashboardStack, page: Page) -> None:
    page.goto("/")
    focused = "document.activeElement.textContent.trim()"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to the content"
    expect(page.locator(".skip")).to_be_in_viewport()
    order = []
    for _ in range(9):
        page.keyboard.press("Tab")
        order.append(page.evaluate(focused))
    assert order == ["penstock", "Queues", "Jobs", "Runs", "Failed", "Workers", "Audit", "API", "moody"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    expect(page.locator("#live")).to_have_text("live")
    page.evaluate("window.before = document.querySelector('tbody tr')")
    stack.submit(*range(20))
    eventually(lambda: page.evaluate("!document.contains(window.before)"))
    assert page.evaluate(focused) == "moody"
    page.goto("/")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_dialog_opens_and_closes_by_keyboard_and_gives_the_focus_back(stack: DashboardStack, page: Page) -> None:
    [old] = stack.failed(1)
    page.goto(f"/ui/jobs/{old}")
    page.locator("#replay").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate("document.activeElement.id") == "replay"


PAGES = (
    "/",
    "/ui/jobs",
    "/ui/jobs/{job}",
    "/ui/runs",
    "/ui/failed",
    "/ui/models/moody",
    "/ui/workers",
    "/ui/api",
    "/ui/jobs/nonsense",
)


def expect_refusal(watch: Watched, path: str) -> None:
    """Drops the error that the browser logs for the page with a bad job id: the status 400 is intended there."""
    if path == "/ui/jobs/nonsense":
        watch.errors = [error for error in watch.errors if "400" not in error]


def test_text_stands_out_in_light_and_in_dark(stack: DashboardStack, watch: Watched) -> None:
    [old] = stack.failed(1)
    for path in PAGES:
        watch.page.goto(path.format(job=old))
        for scheme in SCHEMES:
            watch.page.emulate_media(color_scheme=scheme)
            worst = min(watch.page.evaluate(CONTRAST, TEXTS), key=lambda pair: pair[1])
            assert worst[1] >= 4.5, (path, scheme, worst)
            background = watch.page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (max(map(int, re.findall(r"\d+", background)[:3])) < 60) == (scheme == "dark")
        expect_refusal(watch, path)


def test_a_job_with_attempts_and_long_names_fits_a_phone(stack: DashboardStack, phone: Page) -> None:
    # Regression: the page of a job that was tried again was 456 pixels wide on a phone of 400.
    [job] = stack.submit(0)
    eventually(lambda: stack.job(job)["status"] == "succeeded")
    phone.set_viewport_size({"width": 400, "height": 740})
    phone.goto(f"/ui/jobs/{job}")
    phone.evaluate(ATTEMPTS)
    assert phone.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_group_of_failed_jobs_is_dismissed_and_its_jobs_stay(stack: DashboardStack, page: Page) -> None:
    jobs = stack.failed(3)
    page.goto("/ui/failed")
    page.locator(".group").get_by_role("button", name=re.compile("^Dismiss (it|all)")).click()
    expect(page.get_by_role("heading", name="No failed jobs are kept")).to_be_visible()
    assert {stack.job(job)["status"] for job in jobs} == {"failed"}
    [later] = stack.failed(1)
    page.goto("/ui/failed")
    expect(page.locator(".big")).to_have_text("1")
    expect(page.locator(".group .id").first).to_have_text(later)


def test_nothing_moves_for_users_who_prefer_reduced_motion(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    page.goto("/")
    expect(page.locator("#live")).to_have_text("live")
    assert page.evaluate("getComputedStyle(document.querySelector('#live'), '::before').animationName") == "none"


def test_the_learned_curve_and_the_pinning_plan_are_drawn(stack: DashboardStack, page: Page) -> None:
    stack.submit(*range(8))
    page.goto("/ui/models/moody")
    expect(page.locator("svg.curve circle")).not_to_have_count(0)
    page.goto("/ui/workers")
    slot = page.locator("#workers tbody tr")
    expect(slot.locator(".chip")).to_have_text("ready")
    assert number(slot.locator("[data-label=Process]").inner_text()) > 0


def test_what_was_learned_of_calls_is_on_the_page_of_the_model(stack: DashboardStack, page: Page) -> None:
    def learned() -> Any:
        stack.submit(*range(8))
        return stack.gateway.get("/v1/models/moody").json()["versions"]["1"].get("calls")

    found = eventually(learned)
    page.goto("/ui/models/moody")
    heading = page.get_by_role("heading", name="Learned calls of the model")
    rows = page.locator("section", has=heading).locator("table.plain").last.locator("tbody tr")
    expect(rows).not_to_have_count(0)
    expect(page.locator("section", has=heading)).to_contain_text(f"chosen by {found['measure']}")


def test_jobs_are_filtered_turned_and_found_by_id(stack: DashboardStack, page: Page) -> None:
    [old] = stack.failed(1)
    page.goto("/ui/jobs")
    page.get_by_label("Status").select_option("failed")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody .chip").first).to_have_text("failed")
    assert {chip.strip() for chip in page.locator("tbody .chip").all_inner_texts()} == {"failed"}
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_role("link", name="Newest")).to_be_visible()
    page.get_by_label("Job id").fill(old)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text(old)


def test_a_waiting_job_is_cancelled_from_its_page(stack: DashboardStack, page: Page) -> None:
    with stack.worker.standstill():
        *_, last = stack.submit(*range(20))
        page.goto(f"/ui/jobs/{last}")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
        expect(page.locator(".title .chip").first).to_have_text("cancelled")


def test_the_buttons_of_a_page_that_asks_how_its_job_goes_stay_as_they_are(stack: DashboardStack, page: Page) -> None:
    # Regression: they grew pale for as long as a slow gateway took to answer, once a second.
    with stack.worker.standstill():
        *_, last = stack.submit(*range(20))
        page.goto(f"/ui/jobs/{last}")
        page.route("**/ui/jobs/*", lambda route: None)
        expect(page.locator("#job.htmx-request")).to_be_visible()
        expect(page.locator("#cancel")).to_have_css("opacity", "1")
        page.unroute_all(behavior="ignoreErrors")


def test_behind_a_prefix_one_signs_in_with_a_key_and_every_address_stays_below_it(stack: DashboardStack) -> None:
    with watched(stack.browser, str(stack.keyed.base_url)) as watch:
        page = watch.page
        page.goto("/penstock/ui/jobs?status=failed")
        expect(page).to_have_url(re.compile(r"/penstock/ui/login\?next="))
        page.get_by_label("API key").fill("boss.wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").first).to_contain_text("not a key of this gateway")
        watch.errors.clear()
        page.get_by_label("API key").fill(f"boss.{BOSS.secret}")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile(r"/penstock/ui/jobs\?status=failed$"))
        page.get_by_role("link", name="Queues").click()
        expect(page.locator("#live")).to_have_text("live")
        page.get_by_role("link", name="moody").click()
        expect(page.locator(".charts figure").first).to_be_visible()
        [cookie] = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/penstock/")
        assert BOSS.secret not in json.dumps(page.context.cookies())
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.goto("/penstock/")
        expect(page).to_have_url(re.compile(r"/penstock/ui/login$"))
        assert {path for path in watch.paths if not path.startswith("/penstock/")} == set()


def test_a_key_that_only_reads_sees_no_button_and_no_workers(stack: DashboardStack) -> None:
    with watched(stack.browser, str(stack.keyed.base_url)) as watch:
        page = watch.page
        page.goto("/penstock/ui/login")
        page.get_by_label("API key").fill(f"reader.{READER.secret}")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Queues")).to_be_visible()
        expect(page.get_by_role("link", name="Workers")).to_have_count(0)
        page.get_by_role("link", name="Failed").click()
        expect(page.get_by_role("heading", name="No failed jobs are kept")).to_be_visible()


def test_a_store_that_goes_away_is_said_and_what_was_known_stays_on_the_page(stack: DashboardStack, page: Page) -> None:
    page.goto("/")
    expect(page.locator("#live")).to_have_text("live")
    stack.server.stop()
    try:
        expect(page.get_by_role("alert").first).to_contain_text("The job store does not answer.")
        expect(page.locator("tbody tr")).to_have_count(1)
    finally:
        stack.server.start()
