"""How owners take turns in the oracle: the order of functions/turns.lua, written for reading instead of for speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_Job = TypeVar("_Job")


@dataclass(slots=True)
class OwnerTurns:
    """Per version and band, the owners in the order of their turns. Jobs without an owner have the owner ""."""

    numbers: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)

    def any(self, version: str) -> bool:
        return any(numbers for (of, _), numbers in self.numbers.items() if of == version)

    def has(self, version: str, band: int, owner: str) -> bool:
        return owner in self.numbers.get((version, band), {})

    def take(self, version: str, band: int, owner: str) -> None:
        """Give the owner the last turn, unless the owner has one."""
        if not self.has(version, band, owner):
            self.pass_turn(version, band, owner)

    def pass_turn(self, version: str, band: int, owner: str) -> None:
        """Move the owner's turn to the end."""
        numbers = self.numbers.setdefault((version, band), {})
        numbers[owner] = max(numbers.values(), default=0) + 1

    def drop(self, version: str, band: int, owner: str) -> None:
        del self.numbers[version, band][owner]

    def first(self, version: str, band: int, count: int) -> list[str]:
        numbers = self.numbers.get((version, band), {})
        return sorted(numbers, key=lambda owner: (numbers[owner], owner))[:count]


def one_each(owners: Sequence[str], lines: Mapping[str, Sequence[_Job]], limit: int) -> list[_Job]:
    """One job of each owner in turn, then the second of each, and so on."""
    longest = max((len(lines[owner]) for owner in owners), default=0)
    return [lines[owner][place] for place in range(longest) for owner in owners if place < len(lines[owner])][:limit]
