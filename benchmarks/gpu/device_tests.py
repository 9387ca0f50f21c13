"""The tests marked `gpu`, by their files, in a pytest of their own that needs none of the suite's plugins and settings."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

# A kernel that never ends would take the time of everything else.
LIMIT_S = 300.0
_ROOT = Path(__file__).resolve().parents[2]
_NO_REPORT = "<testsuites/>"
_MARK = "pytest.mark.gpu"
# The suite's own settings name plugins and make warnings errors. A machine with a GPU has the versions that it has: what they
# warn of each other is no fault of a test, and is printed all the same.
_OPTIONS = [
    *("-c", os.devnull, f"--rootdir={_ROOT}", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider"),
    *("-o", "markers=gpu", "-o", "faulthandler_timeout=120", "-m", "gpu", "-q", "-rsfE"),
]


def gpu_tests(root: Path) -> list[str]:
    """The test files below `root` that hold such tests. The others may import what is not installed beside a GPU."""
    return sorted(str(path) for path in root.rglob("test_*.py") if _MARK in path.read_text())


def run_tests(limit_s: float = LIMIT_S, files: Sequence[str] | None = None) -> dict[str, Any]:
    """Which of them failed, which were skipped and why; pytest's own output goes to the terminal as it comes."""
    began = time.monotonic()
    files = gpu_tests(_ROOT / "tests") if files is None else files
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-tests-") as folder:
        report = Path(folder) / "report.xml"
        code = _pytest([*_OPTIONS, f"--junitxml={report}", *files], limit_s)
        found = told(report.read_text() if report.exists() else _NO_REPORT)
    if code is None:
        found["failed"]["pytest"] = f"still running after {limit_s:.0f} s, and ended"
    elif code and not found["failed"]:
        found["failed"]["pytest"] = f"ended with code {code}; what it said stands on the terminal"
    return {"exit_code": code, **found, "seconds": round(time.monotonic() - began, 1)}


def _pytest(arguments: Sequence[str], limit_s: float) -> int | None:
    """Its exit code; None when it was still running at the end of the time."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    # Started in the root, from which tests import each other as `tests.`.
    command = [sys.executable, "-m", "pytest", *arguments]
    try:
        return subprocess.run(command, check=False, cwd=_ROOT, env=environment, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        return None


def told(report: str) -> dict[str, Any]:
    """From pytest's report in JUnit XML: how many passed, and by name the first line of why the others did not."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    failed = {_name(case): line for case in cases if (line := _first_line(case, "failure", "error"))}
    skipped = {_name(case): line for case in cases if (line := _first_line(case, "skipped"))}
    return {"passed": len({_name(case) for case in cases} - {*failed, *skipped}), "failed": failed, "skipped": skipped}


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}".lstrip(".")


def _first_line(case: ElementTree.Element, *kinds: str) -> str:
    """Empty if the case has no such verdict."""
    verdicts = [verdict for kind in kinds for verdict in case.iter(kind)]
    if not verdicts:
        return ""
    message = verdicts[0].get("message", "")
    # Of a file that skips itself pytest has the reason beside the message.
    words = verdicts[0].text or message if message == "collection skipped" else message
    return words.partition("\n")[0] or verdicts[0].tag
