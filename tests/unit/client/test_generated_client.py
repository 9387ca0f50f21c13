from __future__ import annotations

from pathlib import Path

import pytest

from tests import generate_sync_client


@pytest.mark.parametrize(("source", "target"), generate_sync_client.GENERATED.items())
def test_the_blocking_client_is_what_its_generator_makes_of_the_asyncio_one(source: str, target: str) -> None:
    text = Path(generate_sync_client.CLIENT / target).read_text()
    assert text == generate_sync_client.blocking_source(source), "run `make sync-client`"
    assert text.startswith(f"# Generated from client/{source}")
