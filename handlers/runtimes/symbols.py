"""Free dimensions that belong together: within one item, all dimensions of one symbol have the same size. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.handlers.runtimes.contract import Port


@dataclass(frozen=True, slots=True)
class Symbol:
    """A free dimension of the size `factor * name + offset`. `factor` is at least 1."""

    name: str
    factor: int = 1
    offset: int = 0

    def solved(self, size: int) -> int | None:
        """The symbol's value for a dimension of `size`; None if that is no whole number."""
        value, rest = divmod(size - self.offset, self.factor)
        return None if rest else value

    def size(self, value: int) -> int:
        return self.factor * value + self.offset

    def __str__(self) -> str:
        """The dimension as a formula of n: `2 * n`, `n + 1`."""
        product = "n" if self.factor == 1 else f"{self.factor} * n"
        return product if not self.offset else f"{product} {'+' if self.offset > 0 else '-'} {abs(self.offset)}"


class _Seen(NamedTuple):
    value: int
    words: str


def check_symbols(ports: Iterable[Port], arrays: Mapping[str, Any]) -> None:
    """Refuse an item whose dimensions of one symbol do not agree, by an `InvalidInput`."""
    seen: dict[str, _Seen] = {}
    for port in ports:
        for axis, symbol in port.symbols.items():
            size = arrays[port.name].shape[axis]
            words = f"axis {axis} of {port.name} is {size}"
            value = symbol.solved(size)
            if value is None:
                raise InvalidInput(f"{words}, and the model takes only {symbol} there, for a whole n")
            first = seen.setdefault(symbol.name, _Seen(value, words))
            if first.value != value:
                raise InvalidInput(f"{words}, and must be {symbol.size(first.value)} where {first.words}")
