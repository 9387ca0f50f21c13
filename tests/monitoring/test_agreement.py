"""Depth, age, ends and latency in /v1/queues, Prometheus and Flower agree with the ledger of the submitted jobs.

The same stack has data for every query of the Grafana dashboards: with work, failures and a crash.
"""

from __future__ import annotations

import math
import re
from functools import partial

import pytest

from penstock.broker.store.ops import queue_name
from tests.eventually import eventually
from tests.monitoring.boards import BOARDS, QUERIES
from tests.monitoring.conftest import HELD, TIMED_S, WAITING, WatchedStack
from tests.monitoring.flower import tasks
from tests.monitoring.prometheus import RULES

BOTH = ("left", "right")
STATUSES = ("succeeded", "failed", "cancelled", "expired")
# The metrics that have no data in this stack, with the reason.
EMPTY = {
    "penstock_device_memory_used_bytes": "no GPU",
    "penstock_device_memory_total_bytes": "no GPU",
    "penstock_device_utilization_ratio": "no GPU",
    "penstock_lease_losses_total": "no worker lost its leases",
}
# `$__rate_interval` is a variable of Grafana; two minutes cover all steps of the stack. The model `right` had a crash.
VARIABLES = {"$__rate_interval": "2m", "$model": "right"}


def test_thousands_of_jobs_wait_in_three_priorities_of_two_models(told: WatchedStack) -> None:
    waiting = [told.ledger.waiting[model] for model in BOTH]
    assert sum(counts.total() for counts in waiting) == WAITING
    assert all(counts[priority] >= 100 for counts in waiting for priority in ("interactive", "late", "bulk"))


@pytest.mark.parametrize("model", BOTH)
def test_flower_shows_the_depth_per_model_and_priority(told: WatchedStack, model: str) -> None:
    counts, queue = told.ledger.waiting[model], queue_name(model)
    assert told.ledger.flower[queue] == counts.total()
    assert {name: told.ledger.flower[f"{queue} {name}"] for name in counts} == counts
    # The HTML page of Flower shows the same numbers.
    assert f"<td>{queue} bulk</td>" in told.ledger.flower_page
    assert f">{counts['bulk']}<" in told.ledger.flower_page


@pytest.mark.parametrize("model", BOTH)
def test_the_route_for_autoscalers_tells_the_same_depth(told: WatchedStack, model: str) -> None:
    counts, queue = told.ledger.waiting[model], told.ledger.queues[model]
    assert {name: band["depth"] for name, band in queue["priorities"].items()} == counts
    assert (queue["depth"], queue["in_flight"]) == (counts.total(), HELD)


@pytest.mark.parametrize("model", BOTH)
def test_the_dashboard_shows_the_same_depth_per_model_and_priority(told: WatchedStack, model: str) -> None:
    counts, row = told.ledger.waiting[model], row_of(told.ledger.dashboard, model)
    assert f"<strong>{counts.total():,}</strong>" in row
    for priority, depth in counts.items():
        assert f"{depth:,}&nbsp;{priority}" in row
    assert cell(row, "Running") == str(HELD)
    assert cell(row, "Oldest") != "\u2013"


def row_of(page: str, model: str) -> str:
    """The table row of one model, as HTML."""
    return next(str(row) for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if f"/ui/models/{model}" in row)


def cell(row: str, label: str) -> str:
    """The visible text of one cell of the row."""
    found = re.search(rf'<td data-label="{label}"[^>]*>(.*?)</td>', row, re.DOTALL)
    assert found is not None
    return re.sub(r"<[^>]+>", "", found[1]).strip()


@pytest.mark.parametrize("model", BOTH)
def test_prometheus_tells_the_same_depth(told: WatchedStack, model: str) -> None:
    found = {
        sample["metric"]["priority"]: sample for sample in told.ledger.prometheus["depth"] if sample["metric"]["model"] == model
    }
    assert {priority: int(sample["value"][1]) for priority, sample in found.items()} == told.ledger.waiting[model]


@pytest.mark.parametrize("model", BOTH)
def test_the_oldest_job_is_as_old_as_it_is(told: WatchedStack, model: str) -> None:
    began, submitted = told.ledger.first_at[model]
    since = next(sample for sample in told.ledger.prometheus["since"] if sample["metric"]["model"] == model)
    # The gateway reads the ages during the scrape, so after the moment that Prometheus records for the sample.
    assert began - 2.0 <= float(since["value"][1]) <= submitted + 0.5
    asked, answered = told.ledger.looked_at
    assert asked - submitted <= told.ledger.queues[model]["oldest_age_s"] <= answered - began


@pytest.mark.parametrize("model", [*BOTH, "timed"])
def test_prometheus_counts_every_job_and_how_it_ended(told: WatchedStack, model: str) -> None:
    ledger, value = told.ledger, told.prometheus.value
    eventually(lambda: value(f'max(penstock_jobs_accepted_total{{model="{model}"}})') == ledger.accepted[model])
    by_status = f'max by (status) (penstock_jobs_total{{model="{model}"}})'
    wanted = {status: ledger.ended[model][status] for status in STATUSES}
    eventually(lambda: told.prometheus.values(by_status, "status") == wanted)
    eventually(lambda: value(f'sum(model_priority:penstock_queue_depth:max{{model="{model}"}})') == 0)


def test_the_latency_is_what_the_caller_measured(told: WatchedStack) -> None:
    measured = told.ledger.timed_s
    value = told.prometheus.value
    eventually(lambda: value('sum(penstock_job_duration_seconds_count{model="timed"})') == len(measured))
    seconds = eventually(lambda: (found := value('sum(penstock_job_duration_seconds_sum{model="timed"})')) > 0.0 and found)
    assert TIMED_S * len(measured) <= seconds <= sum(measured.values())
    shown = tasks(told.flower, taskname="penstock.infer.timed")
    assert shown.keys() == measured.keys()
    assert all(TIMED_S <= task["runtime"] <= measured[job] for job, task in shown.items())
    assert {task["state"] for task in shown.values()} == {"SUCCESS"}


def test_flower_shows_every_failure_by_its_job(told: WatchedStack) -> None:
    # Flower gets every failure, but only a sample of the successes above 500 a second.
    for model in BOTH:
        failed = tasks(told.flower, taskname=f"penstock.infer.{model}", state="FAILURE").values()
        assert len(failed) == told.ledger.ended[model]["failed"]
        # The failures include the job that was given up after its crash.
        assert [task["exception"] for task in failed].count("crashed") == (1 if model == "right" else 0)


def test_flower_knows_the_worker_and_has_figures_of_its_own(told: WatchedStack) -> None:
    [worker] = told.flower.get("/api/workers").json()
    assert worker.startswith("penstock@")
    figures = told.flower.get("/metrics").text
    assert f'flower_worker_online{{worker="{worker}"}} 1.0' in figures
    assert f'flower_task_runtime_seconds_count{{task="penstock.infer.timed",worker="{worker}"}} 4.0' in figures


def substituted(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


@pytest.mark.parametrize(("board", "panel", "expr"), QUERIES, ids=[f"{board}: {panel}" for board, panel, _ in QUERIES])
def test_a_query_has_data(told: WatchedStack, board: str, panel: str, expr: str) -> None:
    expr = substituted(expr)
    assert "$" not in expr

    def numbers() -> list[float]:
        return [float(sample["value"][1]) for sample in told.prometheus.query(expr)]

    if any(metric in expr for metric in EMPTY):
        assert numbers() == [], "there is data, so it need not stand in EMPTY"
    else:
        eventually(lambda: any(not math.isnan(number) for number in numbers()))


def test_the_list_of_models_to_choose_from_has_them(told: WatchedStack) -> None:
    [variable] = [entry for entry in BOARDS["model"]["templating"]["list"] if entry["name"] == "model"]
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
    assert asked
    found = told.prometheus.get(f"label/{asked[2]}/values", **{"match[]": asked[1]})
    assert found == ["left", "right", "timed"]


def test_every_rule_was_evaluated_without_an_error(told: WatchedStack) -> None:
    groups = told.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}, [rule for rule in rules if rule["health"] != "ok"]
    written = sum(
        len(re.findall(r"^      - (?:record|alert): ", path.read_text("utf-8"), re.MULTILINE)) for path in RULES.glob("*.yml")
    )
    assert len(rules) == written


def test_every_recording_has_data(told: WatchedStack) -> None:
    names = set(re.findall(r"record: (\S+)", (RULES / "recording.yml").read_text("utf-8")))
    for name in names:
        assert eventually(partial(told.prometheus.query, name)), name


def test_the_job_that_was_given_up_is_an_alert(told: WatchedStack) -> None:
    alerts = 'ALERTS{alertstate="firing"}'
    # The rule looks back over minutes. If a scrape was missed, one evaluation has no data, and a later one fires.
    firing = eventually(lambda: (found := told.prometheus.values(alerts, "alertname")).keys() >= {"PenstockDeadJobs"} and found)
    assert not firing.keys() & {"PenstockStoreDown", "PenstockTargetDown", "PenstockNoReadySlot", "PenstockRedisMemory"}
