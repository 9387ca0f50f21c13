"""The faults that every change must survive, with counts that fit the suite; `make faults` runs all, with the full counts.

Each test is one line of the score sheet: nothing accepted is lost, no final view changes, no answer is unexpected, nothing is
stuck, and a dump of the store holds the invariants; the scenario adds its own limits.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.broker.server.embedded import find_server
from penstock.errors import ConfigError
from tests.faults.catalogue import ABSENT, FAULTS, PENSTOCK, Setting
from tests.faults.scenarios import every_fault
from tests.faults.shims import NoCompiler

ON_EVERY_CHANGE = [
    "F2",
    "F3",
    "F5",
    "F8",
    "F9",
    "F14",
    "F17",
    "F18",
    "F18-everysec",
    "F25",
    "F33",
    "F34",
    "F35",
    "F39",
    "F39-freeze",
]


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    try:
        find_server()
    except ConfigError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    return Setting(tmp_path)


@pytest.mark.parametrize("name", ON_EVERY_CHANGE)
def test_no_accepted_job_is_lost_and_no_answer_changes(name: str, setting: Setting) -> None:
    try:
        verdict = FAULTS[name, PENSTOCK].run(setting)
    except NoCompiler as reason:
        pytest.skip(str(reason))
    assert verdict.passed, f"{FAULTS[name, PENSTOCK].title}: {verdict}"
    assert verdict.accepted > 0


def test_every_fault_of_the_catalogue_is_injected_or_says_why_not() -> None:
    injected = {fault.number for fault in every_fault()} | {int(name[1:]) for name in ABSENT}
    assert injected == set(range(1, 41))
