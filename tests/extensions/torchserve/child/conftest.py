from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.extensions.torchserve.child.archives import archive_process


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """Archives take over their process: here it is given back after each test."""
    with archive_process():
        yield
