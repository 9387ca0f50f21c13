"""The Grafana dashboards as files; `test_agreement.py` puts their queries to a Prometheus that has scraped a stack."""

from __future__ import annotations

import json
import re

import pytest

from tests.monitoring.boards import BOARDS, QUERIES
from tests.monitoring.prometheus import FILES, RULES


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
    page = (FILES.parent / "docs" / "reference" / "metrics.md").read_text("utf-8")
    known = set(re.findall(r"`(penstock_\w+)`", page))
    texts = [expr for _, _, expr in QUERIES] + [path.read_text("utf-8") for path in RULES.glob("*.yml")]
    named = {name for text in texts for name in re.findall(r"(?<![:\w])(penstock_\w+)(?!\w*[:\w])", text)}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} <= known
