from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.cli.models.workers import app
from tests.unit.client.scripted_gateway import Line, playing


@pytest.mark.parametrize(
    ("first_call_s", "shown"),
    [({"1": 0.0039, "4": 34.04}, "34 s (4)"), ({"1": 34.04, "4": 0.0039}, "34 s (1)"), ({}, "-")],
)
def test_the_slowest_first_call_is_shown_with_its_batch_size(first_call_s: dict[str, float], shown: str) -> None:
    """Regression: the column showed 3.9 ms, the call of the smallest size, although batches of 4 took 34 s to compile."""
    slot: dict[str, Any] = {"model": "m", "state": "ready", "load_s": 34.7, "warm_up": {"first_call_s": first_call_s}}
    with playing(Line(body={"data": [{"name": "w", "host": "h", "slots": [slot]}]})) as gateway:
        shown_lines = CliRunner().invoke(app, ["--url", gateway.url])
    header, row = shown_lines.stdout.splitlines()
    assert header.endswith("LOADED  FIRST CALL")
    assert row.split("35 s")[1].strip() == shown


def test_how_busy_the_machine_is_stands_below_the_slots() -> None:
    machine = {"cpu_share": 0.34, "load_average": 1.25, "memory_used_bytes": 3 * 1024**3, "memory_total_bytes": 8 * 1024**3}
    worker = {"name": "w", "host": "h", "slots": [], "machine": machine}
    with playing(Line(body={"data": [worker]})) as gateway:
        shown = CliRunner().invoke(app, ["--url", gateway.url])
    assert "w: the machine's processors 34 %, load 1.2, memory 3 GiB of 8 GiB" in shown.output
