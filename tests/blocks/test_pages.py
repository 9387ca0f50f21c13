"""README and docs but for docs/reference: each block of each page is run, and each output it shows is compared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.blocks.page import REASONS, steps_of
from tests.blocks.pages import BLOCK_PAGES
from tests.blocks.running import run_page
from tests.markdown import ROOT, name_of


@pytest.mark.parametrize("page", [page for page in BLOCK_PAGES if page.parent.name != "reference"], ids=name_of)
@pytest.mark.usefixtures("has_server")
def test_what_a_page_shows_is_what_happens(page: Path) -> None:
    outcome = run_page(page)
    print(outcome)
    assert not outcome.failure, outcome.failure


def test_most_blocks_run_and_the_reasons_to_leave_one_out_are_those_that_contributors_read() -> None:
    steps = [step for page in BLOCK_PAGES for step in steps_of(page) if not step.block.is_hidden]
    left_out = Counter(step.reason for step in steps if step.kind == "left out")
    print(f"{len(steps)} blocks: {len(steps) - left_out.total()} run, left out: {dict(left_out)}")
    assert left_out.total() <= len(steps) * 0.4
    page = " ".join((ROOT / "CONTRIBUTING.md").read_text("utf-8").split())
    assert f"has the reasons: {', '.join(REASONS)}." in page
