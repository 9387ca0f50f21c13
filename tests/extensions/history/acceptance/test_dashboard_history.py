"""The charts of the dashboard and GET /v1/history: with real gateways, a real worker and a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import expect
from typer.testing import CliRunner

from penstock import Client
from penstock.broker.store.sync import RedisStore
from penstock.errors import NotFound
from penstock.extensions.history.cli import app as command
from penstock.extensions.history.store import ACCEPTED, SUCCEEDED, read_history
from tests.acceptance.browser import watched
from tests.acceptance.dashboard_stack import DashboardStack, dashboard_stack
from tests.acceptance.gateway_process import gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import WorkerProcess
from tests.security.keyed import READER

PATH = "/v1/models/moody/history"
JOBS = 60


@pytest.fixture(scope="module")
def stack(has_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DashboardStack]:
    """A stack in which jobs ran, and no page was ever open."""
    with dashboard_stack(tmp_path_factory.mktemp("history")) as stack:
        ended = eventually_counted(stack, 0)
        stack.submit(*range(JOBS), -1, -2)
        eventually_counted(stack, ended + JOBS)
        yield stack


def history(stack: DashboardStack, path: str = PATH, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = stack.gateway.get(path, params=query).raise_for_status().json()
    return found


def eventually_counted(stack: DashboardStack, jobs: int) -> int:
    """Wait until so many jobs stand in the histogram of total times, and the store looked at the counters since."""

    def counted() -> bool:
        shown = history(stack)
        looked = [rate for rate in shown["succeeded_per_s"] if rate is not None]
        return bool(looked) and (not jobs or (any(looked) and any(value is not None for value in shown["total_s"]["p50"])))

    eventually(counted, timeout_s=30.0)
    return 0


def test_what_happened_is_told_though_no_page_was_open(stack: DashboardStack) -> None:
    shown = history(stack)
    highest = {
        name: max(value for value in shown[name] if value is not None) for name in ("accepted_per_s", "failed_per_s", "slots")
    }
    assert highest["accepted_per_s"] > 1.0
    assert highest["failed_per_s"] > 0.0
    assert highest["slots"] == 1
    p50, p99 = (max(value for value in shown["total_s"][name] if value is not None) for name in ("p50", "p99"))
    assert 0.02 < p50 <= p99
    assert all(
        len(shown["at"]) == len(shown[name]) for name in ("waiting", "oldest_s", "batch_size", "busy_share", "memory_bytes")
    )
    assert sum(value for value in shown["releases"]["idle"] if value is not None) > 0


@pytest.mark.parametrize(("range_s", "step_s"), [(300, 10), (3_600, 10), (21_600, 60), (86_400, 300), (604_800, 1_800)])
def test_longer_ranges_have_longer_steps_with_the_same_jobs(stack: DashboardStack, range_s: int, step_s: int) -> None:
    shown = history(stack, "/v1/history", range_s=range_s)
    assert (shown["step_s"], shown["model"]) == (step_s, None)
    assert len(shown["at"]) == range_s // step_s
    assert any(shown["accepted_per_s"])


@pytest.mark.parametrize("range_s", ["299", "604801", "day"])
def test_a_range_that_is_not_kept_is_refused(stack: DashboardStack, range_s: str) -> None:
    answer = stack.gateway.get(PATH, params={"range_s": range_s})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert "range_s" in answer.json()["detail"]


def test_a_time_of_the_past_is_named_by_its_ends(stack: DashboardStack) -> None:
    all_of_it = history(stack, range_s=300)
    begin, end = all_of_it["at"][10], all_of_it["at"][20]
    shown = history(stack, **{"from": begin, "to": datetime.fromtimestamp(end, UTC).isoformat()})
    assert shown["at"] == all_of_it["at"][10:20]
    assert history(stack, range_s=300, to=end)["at"][-1] == end - 10


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ({"from": "yesterday"}, "from must be a moment"),
        ({"to": "2026-11-23T10:00:00"}, "to must be a moment"),
        ({"from": 1_700_000_000}, "kept for 7 days"),
        ({"range_s": 604_800, "to": 1_795_000_000}, "kept for 7 days"),
        ({"from": "2090-01-01T00:00:00Z"}, "in the future"),
        ({"range_s": 300, "from": 1}, "range_s and from"),
        ({"since": 1}, "this path takes range_s, from, to"),
    ],
)
def test_a_time_that_cannot_be_shown_is_refused(stack: DashboardStack, query: dict[str, Any], detail: str) -> None:
    answer = stack.gateway.get("/v1/history", params=query)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")
    assert detail in answer.json()["detail"]


def test_the_client_and_the_command_tell_the_same(stack: DashboardStack) -> None:
    url, shown = str(stack.gateway.base_url), history(stack, range_s=300)
    ends = {"since": shown["at"][0], "until": datetime.fromtimestamp(shown["at"][-1], UTC)}
    with Client(url) as client:
        told = client.history("moody", **ends)
        assert client.history(range_s=21_600)["step_s"] == 60
        with pytest.raises(NotFound):
            client.history("nobody")
    assert told["accepted_per_s"] == shown["accepted_per_s"][:-1]
    begin, end = str(shown["at"][0]), str(shown["at"][-1])
    as_json = CliRunner().invoke(command, ["moody", "--from", begin, "--to", end, "--json"], env={"PENSTOCK_URL": url})
    assert json.loads(as_json.stdout) == told
    table = CliRunner().invoke(command, ["moody", "--last", "5m"], env={"PENSTOCK_URL": url}).stdout.splitlines()
    assert table[0].split()[:8] == ["BEGIN", "(UTC),", "10", "s", "EACH", "IN/S", "DONE/S", "FAILED/S"]
    assert 1 < len(table) < 32


def test_an_unknown_model_has_no_history(stack: DashboardStack) -> None:
    assert stack.gateway.get("/v1/models/nobody/history").status_code == 404


def test_only_a_key_that_may_read_sees_it(stack: DashboardStack) -> None:
    assert stack.keyed.get(PATH).status_code == 401
    assert stack.keyed.get(PATH, headers=READER.header).status_code == 200


def test_another_gateway_shows_the_same_curve_in_a_browser(stack: DashboardStack) -> None:
    models = {"moody": {"source": str(stack.folder / "moody.py"), "slots": 1}}
    with (
        gateway_process(stack.server.url, stack.folder / "late", models=models) as late,
        watched(stack.browser, str(late.base_url)) as watch,
    ):
        eventually(lambda: late.get("/readyz").status_code == 200)
        watch.page.goto("/ui/models/moody?span=5m")
        jobs = watch.page.locator("figure", has_text="Jobs per second")
        expect(jobs).to_be_visible()
        assert jobs.locator(".plot .t-a").get_attribute("d")
        assert watch.page.get_by_role("row", name="Total time, accepted to settled p99").count() == 1
        watch.check(str(late.base_url))


def test_ranges_are_chosen_by_keyboard_and_a_phone_shows_every_chart(stack: DashboardStack) -> None:
    phone = {"viewport": {"width": 360, "height": 740}}
    with watched(stack.browser, stack.url, color_scheme="dark", **phone) as watch:
        page = watch.page
        for path in ("/", "/ui/models/moody"):
            page.goto(path)
            page.locator("#range-6h").focus()
            page.keyboard.press("Enter")
            expect(page.locator(".ranges [aria-current]")).to_have_text("6 h")
            expect(page.locator(".charts figure").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert stack.gateway.get("/?span=2y").status_code == 400
        watch.check(stack.url)


def sums(stack: DashboardStack) -> tuple[int, int, int]:
    """Jobs accepted, succeeded, and in the histogram of total times, of all that the store has."""
    with closing(RedisStore(stack.server.url)) as store:
        steps = store.run(read_history("moody", 3)).steps
    accepted, succeeded = (sum(step.sums.get(number, 0) for step in steps) for number in (ACCEPTED, SUCCEEDED))
    return accepted, succeeded, sum(sum(step.totals.values()) for step in steps)


def test_a_killed_worker_loses_the_times_of_its_last_beat_and_no_count(stack: DashboardStack) -> None:
    models = {"moody": {"source": str(stack.folder / "moody.py"), "slots": 1}}
    accepted, succeeded, timed = sums(stack)
    with WorkerProcess(stack.server.url, stack.folder / "second", models) as second:
        second.await_ready()
        eventually(lambda: 2 in history(stack)["slots"], timeout_s=20.0)
        stack.submit(*range(20))
        second.kill()
    # The killed worker may have ended all of them, and the times of these come with the next beat of the other one.
    stack.submit(*range(5))
    eventually(lambda: sums(stack)[:2] == (accepted + 25, succeeded + 25), timeout_s=60.0)
    eventually(lambda: timed + 5 <= sums(stack)[2], timeout_s=60.0)
    assert sums(stack)[2] <= timed + 25
