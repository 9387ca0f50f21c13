"""Where two answers differ, and which differences are meant, each with its reason. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class MeantDifference:
    """`what` says it in a few words, `reason` why it is better, `covers` to which differences it applies."""

    what: str
    reason: str
    covers: Callable[[Difference], bool]


def _is_named_json(found: Difference) -> bool:
    return found.part == "content-type" and not found.theirs and found.ours == "application/json"


def _of(*keys: str) -> Callable[[Difference], bool]:
    return lambda found: found.key in keys


def _is_a_default(found: Difference) -> bool:
    """Whether two descriptions differ in nothing but what no setting sets."""
    theirs, ours = parsed(found.theirs), parsed(found.ours)
    if not (found.key.startswith("management: describe") and isinstance(theirs, list) and isinstance(ours, list)):
        return False
    pairs = [(left[name], right[name]) for left, right in zip(theirs, ours, strict=True) for name in left.keys() - _DEFAULTS]
    return all(is_same(*pair) for pair in pairs)


_DEFAULTS = {"startupTimeout", "jobQueueStatus"}


# `make compare-torchserve` and the tests refuse a difference that none of these covers, and one of these that covers none.
MEANT = (
    MeantDifference(
        "answers that are JSON have `Content-Type: application/json`",
        "TorchServe sends none, so that a client must guess; text and bytes stay without one",
        _is_named_json,
    ),
    MeantDifference(
        "`GET /` is the dashboard",
        "TorchServe answers 405; no client of its API asks for it",
        _of("inference: the root"),
    ),
    MeantDifference(
        "a path that is nobody's is answered by penstock's own error object",
        "the same address serves the other protocols, so the path may be any protocol's",
        _of("inference: a path that is not there"),
    ),
    MeantDifference(
        "`GET /ping` is answered on the management address too",
        "a health check may ask either; TorchServe answers 404",
        _of("management: ping"),
    ),
    MeantDifference(
        "where nothing sets them, `startupTimeout` is 300 s and a queue takes 10,000 requests",
        "TorchServe has 120 s and 100: its queue lies in memory, penstock's on the disk; both can be set",
        _is_a_default,
    ),
)


def unmeant(found: Iterable[Difference]) -> list[Difference]:
    return [one for one in found if not any(meant.covers(one) for meant in MEANT)]


def stale(found: Sequence[Difference]) -> list[str]:
    """Meant differences that cover nothing."""
    return [meant.what for meant in MEANT if not any(map(meant.covers, found))]


def table(found: Sequence[Difference]) -> str:
    """The meant differences as they stand in docs/reference/torchserve.md."""
    rows = [f"| {meant.what} | {meant.reason} | {len({one.key for one in found if meant.covers(one)})} |" for meant in MEANT]
    return "\n".join(["| penstock | why | requests |", "|---|---|---|", *rows])
