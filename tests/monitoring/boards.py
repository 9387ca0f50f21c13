"""The Grafana dashboards and their queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.monitoring.prometheus import FILES

FOLDER = FILES / "grafana" / "dashboards"
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str, str]]:
    for name, board in BOARDS.items():
        for panel in panels(board):
            for target in panel["targets"]:
                yield name, f"{panel['title']} {target['refId']}", target["expr"]


QUERIES = list(queries())
