"""How requests that name no version are divided between versions of a model: weights, sticky header, shadow, canary. Pure.

A split is part of the model's rollout, as plain JSON, so a gateway whose models have no split does not load this module.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from penstock.errors import Conflict
from penstock.extensions.splits.canary import WHOLE, Canary, CanaryState, Move, Verdict

# How many of the last decisions are kept; a canary steps a few times a day.
MOST_DECISIONS = 20
_BITS = 52  # a float holds one more: the half that is added must not round up to 1


@dataclass(frozen=True, slots=True)
class Shadow:
    """`version` gets a copy of `share` percent of the requests. Numbers in JSON outputs that differ by at most `tolerance`,
    relative to the larger one, count as the same.
    """

    version: str
    share: float
    tolerance: float = 1e-6


@dataclass(frozen=True, slots=True)
class Decision:
    """A change of the shares that a canary brought about. `at` is Unix s by the store's clock."""

    at: float
    version: str
    move: Move
    before: float
    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Split:
    """`weights` are percent by version; with a canary those of the other versions among themselves. `sticky`: the header whose
    value decides, in lower case. `period` grows with each change of the shares; the ends of jobs are counted by it.
    """

    id: str
    weights: dict[str, float]
    sticky: str = ""
    shadow: Shadow | None = None
    canary: Canary | None = None
    period: int = 0
    made_at: float = 0.0
    decisions: tuple[Decision, ...] = field(default=())

    @property
    def figures(self) -> str:
        """The name under which the store counts the jobs of this period."""
        return f"{self.id}.{self.period}"

    def shares(self) -> dict[str, float]:
        """Percent of the requests by version, in the order of their names."""
        if self.canary is None:
            return dict(sorted(self.weights.items()))
        rest = 1.0 - self.canary.share / WHOLE
        shares = {version: weight * rest for version, weight in self.weights.items()}
        return dict(sorted({**shares, self.canary.version: self.canary.share}.items()))

    @property
    def is_deciding(self) -> bool:
        return self.canary is not None and self.canary.state is CanaryState.RUNNING

    def used(self) -> set[str]:
        """The versions that get requests or copies now, or may get some without another call."""
        needed = {version for version, share in self.shares().items() if share > 0.0}
        if self.is_deciding:
            needed |= {version for version, weight in self.weights.items() if weight > 0.0}
        return needed | ({self.shadow.version} if self.shadow else set())

    def moved(self, canary: Canary, verdict: Verdict, now: float) -> Split:
        """The split after a verdict that moves its canary. Figures restart, so that each step is judged by its own."""
        after = _moved(canary, verdict, now)
        made = Decision(now, canary.version, verdict.move, canary.share, after.share, verdict.reason)
        decisions = (*self.decisions, made)[-MOST_DECISIONS:]
        return replace(self, canary=after, period=self.period + 1, decisions=decisions)


# `convert` reads the type as a decoder does: D106.
msgspec.json.Decoder(Split)


def _moved(canary: Canary, verdict: Verdict, now: float) -> Canary:
    if verdict.move is Move.BACK:
        return replace(canary, state=CanaryState.STEPPED_BACK, since=now)
    if not canary.is_last:
        return replace(canary, step=canary.step + 1, since=now, baseline=verdict.baseline)
    state = CanaryState.PROMOTED if canary.share == WHOLE else CanaryState.KEPT
    return replace(canary, state=state, since=now)


def chosen(shares: Mapping[str, float], model: str, value: str) -> str:
    """The version for this value: the same one as long as the shares stand.

    Each version gets a number that depends only on the value, the model and the version's name. The version with the largest
    number relative to its share is chosen. So a growing share takes values from others, and no other value moves; cumulative
    weights would also move values between versions whose shares stay.
    """
    return max(shares, key=lambda version: _score(f"{model}\0{version}\0{value}", shares[version]))


def _score(text: str, share: float) -> float:
    return share / -math.log(point_of(text)) if share > 0.0 else -1.0


def point_of(text: str) -> float:
    """A number above 0 and below 1 that only the text decides."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return ((int.from_bytes(digest, "big") >> (64 - _BITS)) + 0.5) / (1 << _BITS)


def split_of(kept: Mapping[str, Any]) -> Split | None:
    """The split of a rollout; None if it has none. Members that a later release wrote are ignored."""
    return msgspec.convert(kept, Split) if kept else None


def kept_split(split: Split) -> dict[str, Any]:
    """The split as its rollout keeps it."""
    table: dict[str, Any] = msgspec.to_builtins(split)
    return table


def check_unused(kept: Mapping[str, Any], model: str, version: str) -> None:
    """Raises `Conflict` for a version that the model's split gives requests to. An unreadable split gives none."""
    try:
        split = split_of(kept)
    except msgspec.ValidationError:
        return
    if split is not None and version in split.used():
        raise Conflict(
            f"version {version!r} has a part in the split of {model!r}",
            hint=f"End or change the split first: DELETE /v1/models/{model}/split",
        )
