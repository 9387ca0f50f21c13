"""docs/reference: each block of each page is run. A file of its own, so that two processes of tests share the pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blocks.pages import BLOCK_PAGES
from tests.blocks.running import run_page
from tests.markdown import name_of

NEEDS_TORCH = ("runtimes.md",)


@pytest.mark.parametrize("page", [page for page in BLOCK_PAGES if page.parent.name == "reference"], ids=name_of)
@pytest.mark.usefixtures("has_server")
def test_what_a_page_shows_is_what_happens(page: Path) -> None:
    if page.name in NEEDS_TORCH:
        pytest.importorskip("torch")
    outcome = run_page(page)
    print(outcome)
    assert not outcome.failure, outcome.failure
