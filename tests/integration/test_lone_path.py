"""The measurement of a lone request's path follows real requests through all processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.experiments.lone_path import stamping
from benchmarks.experiments.lone_path.measuring import side
from benchmarks.experiments.lone_path.steps import MARKS, rows, way


@pytest.mark.usefixtures("has_server")
def test_lone_requests_are_followed_through_gateway_store_worker_and_child(tmp_path: Path) -> None:
    with side(tmp_path / "work", stamped=True, pause_s=0.005) as stack:
        stack.log_commands()
        asked = [stack.predict() for _ in range(20)]
        functions, stamps = stack.function_us(), stamping.read(stack.folder, MARKS)
    ways = [taken for one in asked if (taken := way(one, stamps)) is not None]
    assert ways
    found = rows(ways, asked, functions)
    assert {row.where for row in found} == {"hop", "gateway", "store", "supervisor", "child"}
    assert all(row.us > 0 for row in found if row.where != "hop")
