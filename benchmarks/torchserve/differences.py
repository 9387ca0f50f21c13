"""Where two answers differ, and which differences are meant, each with its reason. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.torchserve.exchanges import KeptAnswer, parsed

_CLOSE = 1e-5


@dataclass(frozen=True, slots=True)
class Difference:
    """`part`: status, a header, or body."""

    key: str
    part: str
    theirs: str
    ours: str


def differences(theirs: Mapping[str, KeptAnswer], ours: Mapping[str, KeptAnswer]) -> list[Difference]:
    """Of all exchanges that both servers got."""
    return [found for key, answer in theirs.items() if key in ours for found in _between(key, answer, ours[key])]


def _between(key: str, theirs: KeptAnswer, ours: KeptAnswer) -> Iterator[Difference]:
    if theirs.status != ours.status:
        yield Difference(key, "status", str(theirs.status), str(ours.status))
    for name in sorted(theirs.headers.keys() | ours.headers.keys()):
        pair = theirs.headers.get(name, ""), ours.headers.get(name, "")
        if pair[0] != pair[1]:
            yield Difference(key, name, *pair)
    left, right = parsed(theirs.body), parsed(ours.body)
    if not is_same(left, right):
        yield Difference(key, "body", theirs.body, ours.body)


def is_same(left: Any, right: Any) -> bool:
    """Equal, with the keys in one order; fractions may differ by 1e-5, which is what two builds of one kernel differ by."""
    if isinstance(left, float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=_CLOSE, abs_tol=_CLOSE)
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(is_same(value, right[name]) for name, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(is_same, left, right))
    return bool(left == right)


# Exchange and part: why ours differs. `make compare-torchserve` and the tests refuse a difference that is not here, and a row
# here that is none.
MEANT: dict[tuple[str, str], str] = {}


def unmeant(found: list[Difference]) -> list[Difference]:
    return [one for one in found if (one.key, one.part) not in MEANT]


def stale(found: list[Difference], asked: set[str]) -> list[tuple[str, str]]:
    """Rows of `MEANT` about exchanges that were sent, and that did not differ."""
    there = {(one.key, one.part) for one in found}
    return [pair for pair in MEANT if pair[0] in asked and pair not in there]
