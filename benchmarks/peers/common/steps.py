"""The model of `benchmarks.experiments.streams`: a decoder's loop without its arithmetic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

TOKEN = " token"


def tell(batch: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    """One token per item and step. A step takes the same time for any number of items; the first one says how long."""
    for _ in range(batch[0]["steps"]):
        time.sleep(batch[0]["step_s"])
        yield [TOKEN] * len(batch)
