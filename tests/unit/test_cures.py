"""Every attack of docs/security.md has a cure that `make cures` takes out; the device that does so is tried here."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cures.attacks import ATTACKS
from tests.cures.catalogue import CURES
from tests.cures.cure import ROOT, Cure, copy_of_the_tree, try_without

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
LINES = dict(re.findall(r"^\| (A\d+|F\d+) \| (.*) \|$", PAGE, re.MULTILINE))
# Features that penstock does not have; a line without a test must name the one that is missing.
MISSING = ("webhooks", "model archives", "ONNX files from callers")


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


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_tree(tmp_path_factory.mktemp("tree"))


def test_a_cure_that_is_taken_out_is_noticed_and_a_change_of_words_is_not(tree: Path) -> None:
    [cure] = [cure for cure in ATTACKS if cure.line == "A12"]
    assert try_without(cure, tree).passed
    assert not try_without(replace(cure, instead=f"{cure.text}  # as before\n       "), tree).passed
    assert (tree / cure.file).read_text("utf-8") == (ROOT / cure.file).read_text("utf-8"), "the cure is back"
