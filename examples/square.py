"""The smallest typed model: serve it with `penstock up examples/square.py`, then call `penstock call square '{"x": 4}'`."""

from __future__ import annotations

from dataclasses import dataclass

import penstock


@dataclass
class Input:
    x: int


@dataclass
class Output:
    y: int


@penstock.model
def square(item: Input) -> Output:
    """The square of a whole number."""
    return Output(y=item.x * item.x)
