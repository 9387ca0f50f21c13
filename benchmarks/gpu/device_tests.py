"""Runs the tests marked `gpu` in a pytest of their own, without the suite's plugins and settings."""

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

# A kernel that never ends must not take the time of the other parts.
LIMIT_S = 300.0
_ROOT = Path(__file__).resolve().parents[2]
_NO_REPORT = "<testsuites/>"
_MARK = "pytest.mark.gpu"
# The suite's settings name plugins and turn warnings into errors. On a GPU machine, versions of libraries may warn about each
# other, which is not a failure of a test.
_OPTIONS = [
    *("-c", os.devnull, f"--rootdir={_ROOT}", "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider"),
    *("-o", "markers=gpu", "-o", "faulthandler_timeout=120", "-m", "gpu", "-q", "-rsfE"),
]


def gpu_tests(root: Path) -> list[str]:
    """The files with tests marked `gpu`. Other files may import packages that are missing on a GPU machine."""
    return sorted(str(path) for path in root.rglob("test_*.py") if _MARK in path.read_text())


def run_tests(limit_s: float = LIMIT_S, files: Sequence[str] | None = None) -> dict[str, Any]:
    """Which tests failed and which were skipped, with reasons. The output of pytest goes to the terminal."""
    began = time.monotonic()
    files = gpu_tests(_ROOT / "tests") if files is None else files
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-tests-") as folder:
        report = Path(folder) / "report.xml"
        code = _pytest([*_OPTIONS, f"--junitxml={report}", *files], limit_s)
        found = read_report(report.read_text() if report.exists() else _NO_REPORT)
    if code is None:
        found["failed"]["pytest"] = f"still running after {limit_s:.0f} s, and ended"
    elif code and not found["failed"]:
        found["failed"]["pytest"] = f"ended with code {code}; see its output on the terminal"
    return {"exit_code": code, **found, "seconds": round(time.monotonic() - began, 1)}


def _pytest(arguments: Sequence[str], limit_s: float) -> int | None:
    """The exit code of pytest; None: it was still running at the time limit."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    # Runs in the root folder, because tests import each other as `tests.`.
    command = [sys.executable, "-m", "pytest", *arguments]
    try:
        return subprocess.run(command, check=False, cwd=_ROOT, env=environment, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        return None


def read_report(report: str) -> dict[str, Any]:
    """From pytest's report in JUnit XML: the number of passed tests, and for the others the first line of the reason."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    failed = {_name(case): line for case in cases if (line := _first_line(case, "failure", "error"))}
    skipped = {_name(case): line for case in cases if (line := _first_line(case, "skipped"))}
    return {"passed": len({_name(case) for case in cases} - {*failed, *skipped}), "failed": failed, "skipped": skipped}


def _name(case: ElementTree.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}".lstrip(".")


def _first_line(case: ElementTree.Element, *kinds: str) -> str:
    """The first line of the reason; empty: the case has no such verdict."""
    verdicts = [verdict for kind in kinds for verdict in case.iter(kind)]
    if not verdicts:
        return ""
    message = verdicts[0].get("message", "")
    # If a whole file skips itself, pytest gives the reason in the text instead of the message.
    words = verdicts[0].text or message if message == "collection skipped" else message
    return words.partition("\n")[0] or verdicts[0].tag
