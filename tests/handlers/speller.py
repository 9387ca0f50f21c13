"""Handlers that yield. `{"text": "abc"}` streams its letters, and more that an order may ask for:

`returns`: the output is that, and not the letters. `raise_at`, `exit_at`: fail or end the process before that letter, `exit_at`
once per file `mark`. `slowly`: each letter takes 0.02 s. `until`: the last letter comes once this file exists. `forever`: the
letters are repeated without an end.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import penstock


class Speller(penstock.Handler):
    """All items of a batch take their steps together."""

    def inference(self, batch: list[Any], /) -> Any:
        letters = [_letters(order) for order in batch]
        for step in itertools.zip_longest(*letters):
            yield list(step)
        return [order.get("returns") for order in batch]


@penstock.model
def spell(order: dict[str, Any]) -> Generator[str, None, Any]:
    yield from _letters(order)
    return order.get("returns")


def _letters(order: dict[str, Any]) -> Iterator[str]:
    text = order["text"]
    for place, letter in enumerate(itertools.cycle(text) if order.get("forever") else text):
        if place == order.get("raise_at", -1):
            raise ValueError("cannot spell on")
        if place == order.get("exit_at", -1):
            _exit_once(Path(order["mark"]))
        if place == len(text) - 1:
            while order.get("until") and not Path(order["until"]).exists():
                time.sleep(0.01)
        if order.get("slowly"):
            time.sleep(0.02)
        yield letter


def _exit_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        # What was yielded is on its way; the test waits for it before it lets the process end.
        while not mark.with_suffix(".go").exists():
            time.sleep(0.01)
        os._exit(3)
