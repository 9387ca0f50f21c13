"""Every line of docs/production/security.md and docs/why/guarantees.md has a cure that `make cures` takes out, or says why not.

The device that takes cures out is tried here.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cures.attacks import ATTACKS
from tests.cures.catalogue import CURES
from tests.cures.cure import ROOT, Cure, copy_of_the_tree, try_without
from tests.cures.faults import FAULTS
from tests.faults import catalogue
from tests.faults.scenarios import every_fault

PAGE = (ROOT / "docs" / "production" / "security.md").read_text("utf-8")
LINES = dict(re.findall(r"^\| (A\d+|F\d+) \| (.*) \|$", PAGE, re.MULTILINE))
GUARANTEES = (ROOT / "docs" / "why" / "guarantees.md").read_text("utf-8")
TABLE = GUARANTEES.partition("## What happens to a job")[2].partition("## The score sheet")[0]
FAULT_LINES = set(re.findall(r"^\| (F\d+(?:-\w+)?) \| ", TABLE, re.MULTILINE))
_ABSENT = TABLE.partition("Not injected, and why:")[2].partition("Injected, and held")[0]
NOT_INJECTED = dict(re.findall(r"^- \*\*(F\d+)\*\* (.*(?:\n  .*)*)", _ABSENT, re.MULTILINE))
# Features that penstock does not have; a line without a test must name the one that is missing.
MISSING = ("model archives", "ONNX files from callers")


def named(cure: Cure) -> str:
    return f"{cure.line}-{cure.file}"


@pytest.mark.parametrize("cure", CURES, ids=named)
def test_a_cure_is_in_the_code_once(cure: Cure) -> None:
    assert cure.taken_out(ROOT) != (ROOT / cure.file).read_text("utf-8")


@pytest.mark.parametrize("cure", ATTACKS, ids=named)
def test_the_page_names_the_tests_that_notice(cure: Cure) -> None:
    assert [test for test in cure.tests if f"`{test}`" not in LINES[cure.line]] == []


def test_every_attack_has_a_cure_or_names_the_feature_that_is_missing() -> None:
    cured = {cure.line for cure in ATTACKS}
    without = {line: text for line, text in LINES.items() if line not in cured}
    assert [
        line for line, text in without.items() if not re.search(rf"not applicable yet: no ({'|'.join(MISSING)})", text)
    ] == []


def test_every_line_of_faults_has_a_cure() -> None:
    assert sorted(FAULT_LINES - {cure.line for cure in FAULTS}) == []
    assert sorted({cure.line for cure in FAULTS} - FAULT_LINES) == []


@pytest.mark.parametrize("cure", FAULTS, ids=named)
def test_a_line_of_faults_is_held_by_the_scenario_of_its_number_or_by_a_test_that_the_page_names(cure: Cure) -> None:
    if cure.fault:
        names = {fault.name for fault in every_fault() if fault.system == catalogue.PENSTOCK}
        assert cure.fault in names
        assert cure.fault.startswith(cure.line)
    assert cure.fault or cure.tests
    assert [test for test in cure.tests if f"`{test}`" not in TABLE] == []


def test_a_fault_that_is_not_injected_names_what_is_missing() -> None:
    assert NOT_INJECTED.keys() == catalogue.ABSENT.keys()
    assert "`python -m benchmarks.main_path.deep_queue`" in NOT_INJECTED["F28"]
    assert (ROOT / "benchmarks" / "main_path" / "deep_queue.py").exists()
    assert "one version" in NOT_INJECTED["F38"]
    assert len(re.findall(r"^## \d", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)) == 1


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_tree(tmp_path_factory.mktemp("tree"))


def test_a_cure_that_is_taken_out_is_noticed_and_a_change_of_words_is_not(tree: Path) -> None:
    [cure] = [cure for cure in ATTACKS if cure.line == "A12"]
    assert try_without(cure, tree).passed
    assert not try_without(replace(cure, instead=f"{cure.text}  # as before\n       "), tree).passed
    assert (tree / cure.file).read_text("utf-8") == (ROOT / cure.file).read_text("utf-8"), "the cure is back"
