from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from penstock.logs import renderers

ESCAPE = "\x1b["
CONFIGURED = "import logging, structlog; from penstock import logs; logs.configure(libraries=logging.WARNING); "


def logged(script: str) -> list[dict[str, Any]]:
    done = subprocess.run([sys.executable, "-c", CONFIGURED + script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def rendered(event: dict[str, Any], *, terminal: bool) -> str:
    made: Any = event
    for step in renderers(terminal=terminal):
        made = step(None, "info", made)
    return str(made)


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), ("", True)])
def test_the_log_on_a_terminal_is_coloured_unless_no_color_is_set(
    monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    line = rendered({"event": "gateway_ready", "level": "info"}, terminal=True)
    assert "gateway_ready" in line
    assert (ESCAPE in line) is coloured


def test_a_line_on_a_terminal_is_short_and_names_libraries_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stamped = {"timestamp": "2026-11-23T22:41:44.558453Z", "level": "info", "event": "child_ready", "model": "mood"}
    ours = rendered({**stamped, "logger": "penstock.workers.slot"}, terminal=True)
    assert ours == "22:41:44 [info] child_ready model=mood"
    assert "kombu" in rendered({**stamped, "logger": "kombu"}, terminal=True)


def test_the_log_elsewhere_is_json() -> None:
    assert rendered({"event": "gateway_ready"}, terminal=False) == '{"event": "gateway_ready"}'


@pytest.mark.parametrize("terminal", [True, False])
def test_a_traceback_shows_no_local_variable(terminal: bool) -> None:
    secret = "".join(["what ", "a caller ", "sent"])
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        line = rendered({"event": "slot_fault", "exc_info": error}, terminal=terminal)
    assert "RuntimeError: broken" in line
    assert secret not in line


def test_an_event_of_ours_has_its_logger_its_level_and_its_fields() -> None:
    [line] = logged("structlog.get_logger('penstock.workers.fleet').warning('slot_stuck', model='m')")
    assert (line["event"], line["level"], line["logger"]) == ("slot_stuck", "warning", "penstock.workers.fleet")
    assert line["model"] == "m"
    assert line["timestamp"].endswith("Z")


def test_what_our_code_logs_through_logging_has_its_facts_too() -> None:
    """Regression: the runner logged events without their fields: `INFO penstock.bulk run_taken`, but not which run."""
    [line] = logged("logging.getLogger('penstock.runs').info('run_taken', extra={'run': 'r1', 'model': 'm'})")
    assert (line["event"], line["run"], line["model"], line["logger"]) == ("run_taken", "r1", "m", "penstock.runs")


def test_a_library_is_heard_from_its_level_on_and_without_what_it_attaches() -> None:
    script = (
        "library = logging.getLogger('kombu'); library.info('chatter'); library.warning('trouble', extra={'body': 'secret'})"
    )
    [line] = logged(script)
    assert (line["event"], line["level"], line["logger"]) == ("trouble", "warning", "kombu")
    assert "body" not in line


def test_an_exception_is_one_line_with_its_traceback() -> None:
    [line] = logged('exec(\'try: 1 / 0\\nexcept ArithmeticError: structlog.get_logger("penstock").exception("slot_fault")\')')
    assert line["level"] == "error"
    assert line["exception"].endswith("ZeroDivisionError: division by zero")


def test_the_names_of_job_events_cost_no_import_of_structlog() -> None:
    script = "import sys, penstock.logs; sys.exit('structlog' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    assert logging.getLogger("penstock").level == logging.NOTSET
