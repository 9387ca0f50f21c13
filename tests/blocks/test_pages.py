"""README and docs: each block of each page is run, and each output that a page shows is compared with the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.blocks.pages import BLOCK_PAGES, NOT_YET
from tests.blocks.running import run_page
from tests.markdown import name_of


@pytest.mark.parametrize("page", [page for page in BLOCK_PAGES if name_of(page) not in NOT_YET], ids=name_of)
@pytest.mark.usefixtures("has_server")
def test_what_a_page_shows_is_what_happens(page: Path) -> None:
    outcome = run_page(page)
    print(outcome)
    assert not outcome.failure, outcome.failure
