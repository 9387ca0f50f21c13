"""Every query of the Grafana dashboards, on a Prometheus that has scraped a stack with work, failures and a crash."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.eventually import eventually
from tests.monitoring.conftest import Stack
from tests.monitoring.prometheus import FILES, RULES

FOLDER = FILES / "grafana" / "dashboards"
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
# The metrics that have no data in this stack, with the reason.
EMPTY = {
    "penstock_device_memory_used_bytes": "no GPU",
    "penstock_device_memory_total_bytes": "no GPU",
    "penstock_device_utilization_ratio": "no GPU",
    "penstock_lease_losses_total": "no worker lost its leases",
}
# `$__rate_interval` is a variable of Grafana; two minutes cover all steps of the stack. The model `right` had a crash.
VARIABLES = {"$__rate_interval": "2m", "$model": "right"}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str, str]]:
    for name, board in BOARDS.items():
        for panel in panels(board):
            for target in panel["targets"]:
                yield name, f"{panel['title']} {target['refId']}", target["expr"]


def substituted(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


QUERIES = list(queries())


@pytest.mark.parametrize(("board", "panel", "expr"), QUERIES, ids=[f"{board}: {panel}" for board, panel, _ in QUERIES])
def test_a_query_has_data(told: Stack, board: str, panel: str, expr: str) -> None:
    expr = substituted(expr)
    assert "$" not in expr

    def numbers() -> list[float]:
        return [float(sample["value"][1]) for sample in told.prometheus.query(expr)]

    if any(metric in expr for metric in EMPTY):
        assert numbers() == [], "there is data, so it need not stand in EMPTY"
    else:
        eventually(lambda: any(not math.isnan(number) for number in numbers()))


def test_the_list_of_models_to_choose_from_has_them(told: Stack) -> None:
    [variable] = [entry for entry in BOARDS["model"]["templating"]["list"] if entry["name"] == "model"]
    asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
    assert asked
    found = told.prometheus.get(f"label/{asked[2]}/values", **{"match[]": asked[1]})
    assert found == ["left", "right", "timed"]


def test_every_rule_was_evaluated_without_an_error(told: Stack) -> None:
    groups = told.prometheus.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}, [rule for rule in rules if rule["health"] != "ok"]
    written = sum(
        len(re.findall(r"^      - (?:record|alert): ", path.read_text("utf-8"), re.MULTILINE)) for path in RULES.glob("*.yml")
    )
    assert len(rules) == written


def test_every_recording_has_data(told: Stack) -> None:
    names = set(re.findall(r"record: (\S+)", (RULES / "recording.yml").read_text("utf-8")))
    for name in names:
        assert eventually(partial(told.prometheus.query, name)), name


def test_the_job_that_was_given_up_is_an_alert(told: Stack) -> None:
    alerts = 'ALERTS{alertstate="firing"}'
    # The rule looks back over minutes. If a scrape was missed, one evaluation has no data, and a later one fires.
    firing = eventually(lambda: (found := told.prometheus.values(alerts, "alertname")).keys() >= {"PenstockDeadJobs"} and found)
    assert not firing.keys() & {"PenstockStoreDown", "PenstockTargetDown", "PenstockNoReadySlot", "PenstockRedisMemory"}


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_can_be_found_and_asks_the_source_that_was_chosen(name: str) -> None:
    board = BOARDS[name]
    assert board["uid"] == f"penstock-{name}"
    assert board["templating"]["list"][0]["type"] == "datasource"
    sources = re.findall(r'"uid": "([^"]+)"', json.dumps(board["panels"]))
    assert set(sources) == {"${datasource}"}
    assert all(link["url"].removeprefix("/d/penstock-") in BOARDS for link in board["links"])


@pytest.mark.parametrize("name", BOARDS)
def test_no_two_panels_of_a_board_lie_on_each_other(name: str) -> None:
    ids = [panel["id"] for panel in BOARDS[name]["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in BOARDS[name]["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_metric_of_ours_that_a_query_names_is_documented() -> None:
    page = (FILES.parent / "docs" / "metrics.md").read_text("utf-8")
    known = set(re.findall(r"`(penstock_\w+)`", page))
    texts = [expr for _, _, expr in QUERIES] + [path.read_text("utf-8") for path in RULES.glob("*.yml")]
    named = {name for text in texts for name in re.findall(r"(?<![:\w])(penstock_\w+)(?!\w*[:\w])", text)}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} <= known
