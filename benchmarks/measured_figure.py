"""The figures of a benchmark with their targets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.words import number


@dataclass(frozen=True, slots=True)
class MeasuredFigure:
    """A figure must be at least `target` if `at_least`, otherwise at most; None: it is reported, not judged. `peers`: the
    workload of the comparison with other servers, whose rates are shown too, in units of `peers_unit`.
    """

    name: str
    text: str
    target: float | None
    at_least: bool = True
    peers: str = ""
    peers_unit: float = 1.0

    def met(self, value: float) -> bool:
        if self.target is None:
            return True
        return value >= self.target if self.at_least else value <= self.target

    def target_text(self) -> str:
        if self.target is None:
            return "stated"
        return f"{'>=' if self.at_least else '<='} {number(self.target)}"

    def verdict(self, value: float) -> str:
        """Empty for a figure without a target."""
        if self.target is None:
            return ""
        return "met" if self.met(value) else "MISSED"


def missed(figures: Iterable[MeasuredFigure], values: Mapping[str, float]) -> list[str]:
    """The names of those that were measured and miss their targets."""
    return [figure.name for figure in figures if figure.name in values and not figure.met(values[figure.name])]
