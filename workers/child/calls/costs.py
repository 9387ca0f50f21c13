"""The cost of the items of a batch: as the handler says, or else the size of the inputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isfinite
from typing import Any

from penstock.handlers.loaded import Loaded

# Within a value, lists and objects are looked into this deep: {"text": [...]} has a size, a tree of objects has none.
_DEPTH = 2
_LEAST, _MOST = 1e-9, 1e15


class CostReader:
    """One handler's costs. Used by one thread at a time."""

    def __init__(self, loaded: Loaded) -> None:
        self._cost = loaded.cost
        self._is_reported = False

    def declared(self, values: Sequence[Any]) -> list[float | None]:
        """The handler's cost of each item; None for an item without a usable cost.

        D66: no fault of `cost` fails an item, because the answer does not depend on it.
        """
        return [self._one(value) for value in values]

    def _one(self, value: Any) -> float | None:
        assert self._cost is not None
        try:
            cost = float(self._cost(value))
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything
            self._report(f"raised {type(error).__name__}: {error}")
            return None
        if isfinite(cost) and cost >= 0.0:
            return cost
        self._report(f"returned {cost}, not a finite number of at least 0")
        return None

    def _report(self, what: str) -> None:
        """Log the first fault only: a method that fails once usually fails for every item."""
        if not self._is_reported:
            self._is_reported = True
            sys.stderr.write(f"the handler's cost {what[:300]}; such an item counts as the costliest of its batch\n")
            sys.stderr.flush()


def natural_costs(values: Sequence[Any]) -> list[float | None]:
    """The sizes of values: the characters of a text, the bytes of a body, the numbers of an array or list, of an object the sum
    over its fields."""
    return [_size(value, _DEPTH) for value in values]


def _size(value: Any, depth: int) -> float | None:
    if isinstance(value, (str, bytes)):
        return len(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return _product(shape)
    if depth and isinstance(value, dict):
        return _total([_size(part, depth - 1) for part in value.values()])
    if isinstance(value, (list, tuple)):
        return len(value)
    fields = getattr(value, "__struct_fields__", None)
    if depth and fields:
        return _total([_size(getattr(value, name), depth - 1) for name in fields])
    return None


def _product(shape: tuple[Any, ...]) -> float | None:
    product = 1.0
    for side in shape:
        if not isinstance(side, int):
            return None
        product *= side
    return product


def _total(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def complete(costs: Sequence[float | None]) -> list[float]:
    """The costs with no gap: an item without one counts as the costliest, so that it shares no call with cheap ones."""
    known = [None if cost is None else _bounded(cost) for cost in costs]
    most = max((cost for cost in known if cost is not None), default=1.0)
    return [most if cost is None else cost for cost in known]


def _bounded(cost: float) -> float:
    """Numbers beyond these would leave the range of floats once they are multiplied and divided."""
    return min(cost, _MOST) if cost >= _LEAST else 0.0
